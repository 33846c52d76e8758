"""The run directory on disk: its record, lease and journal, and the traces of earlier jobs.

May import ``system``, ``recovery`` and ``checkpoint``.  Must not know processes, MPI or models.
"""
