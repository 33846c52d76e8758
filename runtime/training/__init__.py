"""The training loop: the trainer of a script, and one method for each state of a step.

May import every room below it: ``saving``, ``worker``, ``model``, ``exchange``, ``run``,
``options`` and ``system``.  Must not know supervisor and agent.
"""
