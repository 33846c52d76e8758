"""The training loop: the trainer of a script, and one method for each state of a step.

Imports ``custom``, ``saving``, ``reading``, ``weights``, ``pipelines``, ``worker``, ``model``,
``exchange``, ``options``, ``loss``, ``run``, ``progress``, ``system``, ``checkpoint`` and
``recovery``.  Must not know supervisor and agent.
"""
