"""The processes of one host: agent, workers, guards, mpiexec and the pool, and its limits.

Must not load NumPy, MPI, TensorFlow or HDF5: the pool imports them for the workers that it
forks.
"""
