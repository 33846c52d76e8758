"""The command line: each file is one command, which builds a value and calls one function."""
