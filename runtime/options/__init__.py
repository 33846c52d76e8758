"""What the user asked for, and what each worker is told of it.

Must not open a file but ``holdfast.toml`` and the run's record, and must not load NumPy.
"""
