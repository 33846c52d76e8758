"""The command line: each command builds a value, calls one function and prints.

Must not decide anything about a job or a checkpoint, nor load NumPy before a command needs it.
"""
