"""Keras's callbacks beside a training: their hooks, what they remember, and their files.

Must not know ``fit``.
"""
