"""Searches: ``holdfast sweep``, whose trials are runs, and ``holdfast.trial`` in their scripts.

The command line stands above this package, `launch` below it.
"""
