"""The model and its data: the replica, Keras, weights and samples.

Owns the imports of TensorFlow and Keras.  May import ``exchange.vector`` and ``run``.
Must not know the number of workers.
"""
