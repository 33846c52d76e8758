"""The work of commands on a run: import, export, inspect, report, ask for a save.

Imports ``fit``, ``training``, ``supervisor``, ``weights``, ``worker``, ``model``, ``options``,
``run``, ``evidence``, ``progress``, ``system`` and ``checkpoint``.  Decides nothing about
checkpoints: ``checkpoint`` does.
"""
