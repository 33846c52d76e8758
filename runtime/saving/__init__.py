"""A worker's part of a save: when it begins, the copy of its share, and how all hear of its end.

Imports ``committing``, ``worker``, ``exchange``, ``options``, ``run``, ``system``,
``checkpoint`` and ``recovery``.  Must not know the training loop or the replica: it sees
tensors by name.
"""
