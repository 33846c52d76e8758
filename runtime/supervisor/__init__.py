"""The job from outside MPI: launches, relaunches, and messages to the user.

Imports ``agent``, ``mpi_trial``, ``options``, ``batch``, ``run``, ``mpiexec``, ``evidence``,
``progress``, ``system``, ``checkpoint`` and ``recovery``.  Must not load NumPy, MPI, TensorFlow
or HDF5.  Nothing in training may wait for it.
"""
