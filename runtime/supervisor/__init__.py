"""The job from outside MPI: launches, relaunches, and what people are told.

May import ``agent``, ``run``, ``options`` and ``system``.  Must not load NumPy, MPI,
TensorFlow or HDF5, and nothing in training waits for it.
"""
