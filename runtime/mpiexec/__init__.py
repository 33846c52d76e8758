"""MPI's launcher: its command line, its process, and the guards that it starts.

This room may import `system`.  It must not load MPI: the workers' processes do.
"""
