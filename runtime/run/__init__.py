"""The run directory on disk: its record, lease and journal, and the traces of earlier jobs.

Imports ``system``, ``checkpoint`` and ``recovery``.  Must not know processes, MPI or models.
"""
