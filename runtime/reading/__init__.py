"""Reads that all workers of a world make together, again and again while a file system fails.

May import ``worker`` and ``exchange``.  Must not know what a state is, nor load one.
"""
