"""Chaos owns strikes from outside: plan, victims, the followed run, its twin, the verdict.

Imports ``commands``, ``batch``, ``run``, ``mpiexec``, ``system`` and ``recovery``.  Must not
reach into a job: no injected fault, no message, no file of the run directory.
"""
