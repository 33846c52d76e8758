"""The agent's side of saving: the memory of the host, and its handle on the host's writer.

Imports ``watch`` and ``system``.  It starts the writer by the name of its module, and imports
nothing of what commits.
"""
