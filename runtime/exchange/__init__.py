"""Messages, worlds and exact sums: all that workers do together.

Owns the one import of mpi4py.  May import ``system`` and ``recovery``.  Must not know
models, data, checkpoints or the run directory.
"""
