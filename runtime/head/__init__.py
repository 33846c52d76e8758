"""The job from outside MPI: launches, relaunches, and messages to the user.

Must not load NumPy, MPI, TensorFlow or HDF5.  Nothing in training may wait for it.
"""
