"""One job from outside MPI: what is decided, started, relaunched, and said to the user.

Must not load NumPy, MPI, TensorFlow or HDF5.  Nothing in training may wait for it.
"""
