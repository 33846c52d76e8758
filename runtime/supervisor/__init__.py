"""The job from outside MPI: launches, relaunches, and messages to the user.

May import ``agent``, ``mpi_trial``, ``run``, ``options`` and ``system``.  Must not load
NumPy, MPI, TensorFlow or HDF5.  Nothing in training may wait for it.
"""
