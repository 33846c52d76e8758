"""Files as a checkpoint needs them: opened without following links, synced, renamed, removed.

Imports no other room.  Must not know the contents of a file.
"""
