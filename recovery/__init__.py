"""Decisions of a training job, as pure functions and frozen values.

Nothing in this layer reads a clock, opens a file or socket, starts a thread,
logs, or imports MPI, TensorFlow or HDF5: events come in, commands go out, and
time is an argument.
"""
