"""What is struck: one module a kind of work."""
