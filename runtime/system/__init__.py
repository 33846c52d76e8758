"""The interface to Linux: processes, channels, shared memory, and a loop over descriptors.

Owns every call of psutil, and all sockets but the guard's.  Must not decide, and must not know
jobs, runs and worlds.
"""
