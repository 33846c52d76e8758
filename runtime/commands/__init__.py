"""The command line, and work on a run from outside: one module a command, with what it reads.

Must not decide anything about a job or a checkpoint, nor load NumPy before a command needs it.
"""
