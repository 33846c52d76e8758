"""The batch system around a job: its allocation, its time limit, its incarnations.

May import ``run``, ``system`` and ``checkpoint``'s names.  Must not know how a job trains,
and must run no program but those of `slurm_commands`.
"""
