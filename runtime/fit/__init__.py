"""Keras's ``fit`` as the collective: an ordinary script trains on all workers, unchanged.

Must not import Keras before the script does.
"""
