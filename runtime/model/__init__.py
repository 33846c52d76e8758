"""The model and its data: the replica, Keras, weights and samples.

Imports ``exchange``, ``loss``, ``draws``, ``checkpoint`` and ``recovery``.  Must not know the
number of workers.
"""
