"""Which MPI there is, and how far it can be trusted: trials by real deaths, and their verdict.

Only `rank` may load MPI and NumPy: mpiexec runs it as a program of its own.  Must not know jobs,
agents or the run directory.
"""
