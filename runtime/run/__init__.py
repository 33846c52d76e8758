"""The run directory on disk: its record, lease and journal, and what earlier jobs left in them.

May import ``system``, ``recovery`` and ``checkpoint``.  Must not know processes, MPI or models.
"""
