"""The interface to Linux: processes, channels, shared memory, and a loop over descriptors.

Owns every call of psutil, prctl and sockets.  May import ``errors``.  Must not decide, and
must not know jobs, runs and worlds.
"""
