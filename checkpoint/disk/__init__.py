"""Files as a checkpoint needs them: opened without following links, synced, renamed, removed.

May import only ``checkpoint.errors``.  Must not know what is in a file.
"""
