"""A host's processes: agent, workers, the pool of warm processes, and the link to the writer.

May import ``mpiexec``, ``options`` and ``system``.  Must not load NumPy, MPI, TensorFlow or
HDF5: the pool imports them for the workers that it forks.
"""
