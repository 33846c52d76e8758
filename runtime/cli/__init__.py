"""The command line: each file is one command, and only builds a value and calls one function."""
