"""Work on a run from outside: status, report, import and export, an order to save, and chaos.

Decides nothing about checkpoints: ``checkpoint`` does.
"""
