"""The weights that a new run begins with: where they lie, and how they get into a replica.

Imports ``model``, ``run`` and ``checkpoint``.  Must not load TensorFlow before a source of
TensorFlow or Keras asks for it.
"""
