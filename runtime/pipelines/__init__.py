"""Input pipelines: batches in order, from ``tf.data``, ``PyDataset`` and generators.

May import ``model``, ``exchange.communicator`` and ``checkpoint.format.digest``.  Must not know
the training loop.  TensorFlow is imported only by the files whose names begin with ``tf_``.
"""
