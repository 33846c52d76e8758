"""What the loss and the metrics of a model are made of: sums, quotients and a scale.

Owns the numerators and denominators that travel in a contribution.  Imports ``recovery``.  Must
not know models, workers and microbatches.
"""
