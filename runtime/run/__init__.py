"""The run directory on disk: its record, lease and journal, and how far a run has come.

Must not know processes, MPI or models.
"""
