"""Messages, worlds and exact sums: all common work of the workers.

Owns the one import of mpi4py.  Must not know models, data, checkpoints or the run directory.
"""
