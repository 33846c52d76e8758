"""The weights that a new run begins with: where they lie, and how they get into a replica.

May import ``model`` and ``run``.  Must not know the number of workers.
"""
