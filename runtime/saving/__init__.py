"""Saves, from a snapshot in memory to a commit on the disk, and the care of old checkpoints.

May import ``worker``, ``exchange``, ``run``, ``options`` and ``system``.  Must not know the
training loop or the replica: it sees tensors by name.
"""
