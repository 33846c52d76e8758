"""Keras's ``fit`` as the collective, with its callbacks: an ordinary script trains unchanged.

Must not import Keras before the script does.
"""
