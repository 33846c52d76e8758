"""How far a run has come: told by its workers, passed on by their agent, put into words for people.

Imports ``system``.  Must not load NumPy, MPI, TensorFlow or HDF5, and must not draw:
``terminal`` has the colours.
"""
