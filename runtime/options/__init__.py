"""What the user asked for, and what each worker is told of it.

Imports ``batch``, ``run``, ``system``, ``checkpoint`` and ``recovery``.  Must not open a file
but ``holdfast.toml`` and the run's record, and must not load NumPy.
"""
