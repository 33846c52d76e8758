"""Input pipelines: batches in order, from ``tf.data``, ``PyDataset`` and generators.

Imports ``model``, ``exchange``, ``checkpoint`` and ``recovery``.  Must not know the training
loop.  TensorFlow is imported only by the files whose names begin with ``tf_``.
"""
