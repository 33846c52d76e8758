"""The acting layer: everything that touches a clock, a process, a socket, MPI or TensorFlow.

The docstring of each package names its duties and its limits.  Scripts import from ``holdfast``.
"""
