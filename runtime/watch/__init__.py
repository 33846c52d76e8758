"""The limits of a host that end processes: memory, shared memory, processes, open files.

It reads them for the agent, foresees the one that will be met, and names the OOM killer.
Imports ``system``.  Must not end or delay anything.
"""
