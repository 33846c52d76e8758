"""Writing, committing and reading checkpoints.

Imports ``disk`` and ``format``.  Invariants: a visible step is complete and on the
disk, and every byte that a reader returns was verified by its digest.
"""
