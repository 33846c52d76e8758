"""The work of commands on a run: import, export, inspect, report, ask for a save.

May import ``supervisor``, ``model``, ``run`` and ``options``.  Decides nothing about
checkpoints: ``checkpoint`` does.
"""
