"""From images in memory to checkpoints: commit, care of old steps, mends, the writer's process.

May import what is below it: run, options, system, checkpoint.  It knows no worker, no
communicator and no training loop.
"""
