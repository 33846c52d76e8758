"""Linux as the rest sees it: processes, channels, shared memory, and a loop over descriptors.

Owns every call of psutil, prctl and sockets.  May import ``errors``.  Decides nothing, and
knows nothing of jobs, runs and worlds.
"""
