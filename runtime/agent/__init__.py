"""A host's processes: agent, workers, the pool of warm processes, and the link to the writer.

Imports ``writing``, ``options``, ``run``, ``mpiexec``, ``watch``, ``evidence``, ``progress``,
``system`` and ``recovery``.  Must not load NumPy, MPI, TensorFlow or HDF5: the pool imports
them for the workers that it forks.
"""
