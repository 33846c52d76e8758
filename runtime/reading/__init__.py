"""Reads that all workers of a world make together, again and again while a file system fails.

Imports ``worker``, ``exchange``, ``system``, ``checkpoint`` and ``recovery``.  Must not know
what a state is, nor load one.
"""
