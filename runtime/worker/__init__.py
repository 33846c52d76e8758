"""One worker's surroundings: its first and last moments, its context, faults and records.

Must not know the model.
"""
