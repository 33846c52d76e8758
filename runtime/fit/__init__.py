"""Keras's ``fit`` as the collective of a job: data, phases, callbacks.

May use `training` and all rooms below it.
"""
