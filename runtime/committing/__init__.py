"""From images in memory to checkpoints: commit, care of old steps, mends, the writer's process.

Imports ``run``, ``system`` and ``checkpoint``.  Must not know workers, communicators and the
training loop.
"""
