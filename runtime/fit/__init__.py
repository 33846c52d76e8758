"""Keras's ``fit`` as the collective: an ordinary script trains on all workers, unchanged.

Imports ``callbacks``, ``training``, ``custom``, ``samples``, ``pipelines``, ``worker``,
``model``, ``options``, ``run``, ``progress``, ``checkpoint`` and ``recovery``.  Must not import
Keras before the script does.
"""
