"""The command line: each file is one command, which builds a value and calls one function.

Imports ``chaos``, ``terminal``, ``commands``, ``supervisor``, ``agent``, ``mpi_trial``,
``options``, ``batch``, ``run``, ``mpiexec``, ``progress``, ``system`` and ``checkpoint``.  Must
not decide anything about a job or a checkpoint, nor load NumPy before a command needs it.
"""
