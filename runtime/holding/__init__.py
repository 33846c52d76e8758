"""The agent's side of saves: the memory that it owns, and the process that commits from it.

May import ``system`` and ``watch``.  It knows no worker and no launch, and loads no NumPy.
"""
