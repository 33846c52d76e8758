"""The batch system around a job: its allocation, its time limit, its incarnations.

Must not know how a job trains, and must run no program but those of Slurm (`schedulers`).
"""
