"""What is spoilt after a commit: one module a kind of files, and the ways to spoil them."""
