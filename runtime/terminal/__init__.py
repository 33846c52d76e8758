"""What a terminal shows: the console of results, a bar, and the colours of the live line.

Imports ``progress``.  Must not know commands, jobs and checkpoints.
"""
