"""Decisions of a training job, as pure functions and frozen values.

This layer reads no clock, opens no file and no socket, starts no thread and writes no
log.  It imports neither MPI nor TensorFlow nor HDF5.  Events come in, commands go out,
and time is an argument.
"""
