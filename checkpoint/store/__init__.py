"""Writing, committing and reading checkpoints.

May import ``disk`` and ``format``.  Invariant: a step that is visible is complete and on
the disk, and nothing is returned whose digest was not verified.
"""
