"""What commands do over a run: import, export, inspect, report, ask for a save.

May import ``supervisor``, ``model``, ``run`` and ``options``.  Decides nothing about
checkpoints: that is known in ``checkpoint``.
"""
