"""Random numbers of a microbatch, and numbers that are the same for each of its samples.

Owns what takes the place of TensorFlow's random operations.  Imports no other room.  Must not
know models, workers and steps.
"""
