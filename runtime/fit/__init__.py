"""Keras's ``fit`` as the collective: an ordinary script trains on all workers, unchanged.

May import every room below it.  Keras is imported by the script, never by this room first.
"""
