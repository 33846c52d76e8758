"""The training loop: the trainer of a script, one method for each state of a step, and restores.

Must not know head and agent.
"""
