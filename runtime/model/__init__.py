"""What is trained and on what: the replica, Keras, weights and data.

Owns the imports of TensorFlow and Keras.  May import ``exchange.vector`` and ``run``.
Must not know how many workers there are.
"""
