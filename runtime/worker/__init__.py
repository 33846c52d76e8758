"""One worker's surroundings: its first and last moments, its context, faults and records.

May import ``exchange``, ``run``, ``options`` and ``system``.  Must not know the model.
"""
