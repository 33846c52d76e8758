"""Work on a run from outside: status, report, import and export, and an order to save.

Decides nothing about checkpoints: ``checkpoint`` does.
"""
