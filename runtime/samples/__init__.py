"""Samples that stay on the disk, or in one array, and are read by number.

A room of its own above the room ``model``, which holds arrays in memory: each kind of file has
a library, and a reason why reading it again gives the same bytes.  Imports ``pipelines``,
``model`` and ``checkpoint``.  Must not shuffle or draw.
"""
