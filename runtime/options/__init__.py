"""What the user asked for, and what each worker is told of it.

May import ``batch``, ``run``, ``system``, ``recovery`` and ``checkpoint``.  Must not open a
file but ``holdfast.toml`` and the run's record, and must not load NumPy.
"""
