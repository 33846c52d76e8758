"""Files as a checkpoint needs them: opened without following links, synced, renamed, removed.

May import only ``checkpoint.errors``.  Must not know the contents of a file.
"""
