"""A Keras model as an exact replica: losses, metrics, random operations and own steps.

Must not know the number of workers.
"""
