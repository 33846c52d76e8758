"""A model's own step of training or validation, run as it is on microbatches.

A room of its own above the room ``model``, because it captures what a script does, while that
room decides what is computed.  Imports ``model``, ``loss``, ``draws``, ``checkpoint`` and
``recovery``.  Must not know the number of workers.
"""
