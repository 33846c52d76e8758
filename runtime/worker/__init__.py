"""One worker's surroundings: its first and last moments, its context, faults and records.

Imports ``exchange``, ``options``, ``batch``, ``run``, ``evidence``, ``progress``, ``system``,
``checkpoint`` and ``recovery``.  Must not know the model.
"""
