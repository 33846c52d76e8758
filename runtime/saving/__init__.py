"""Saves, from the copy that a worker makes to the commit, and the care of old checkpoints.

Must not know the training loop or the replica: it sees tensors by name.
"""
