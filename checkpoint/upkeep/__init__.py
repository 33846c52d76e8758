"""Old checkpoints: verified, compared, mended from another holder, kept or pruned.

Imports ``store``, ``disk`` and ``format``.  Must not remove a step before a newer one
was read back.
"""
