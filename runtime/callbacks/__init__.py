"""Keras's callbacks beside a training: their hooks, what they remember, and their files.

May import ``training`` and every room below it.  Must not know ``fit``.
"""
