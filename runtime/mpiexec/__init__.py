"""MPI's launcher: its command line, its process, and the guards that it starts.

Imports ``system``.  Must not load MPI: the workers' processes do.
"""
