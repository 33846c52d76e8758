"""Keras's callbacks beside a training: their hooks, what they remember, and their files.

Imports ``training``, ``model``, ``checkpoint`` and ``recovery``.  Must not know ``fit``.
"""
