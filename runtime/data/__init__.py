"""Data on their way to a model: batches of pipelines in order, and samples read by number.

Must not know the training loop.  TensorFlow is imported only by the files whose names begin with
``tf_``.
"""
