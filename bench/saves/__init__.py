"""The parts of `bench/checkpoint.py`: its state, its ways to save it, and what it times."""
