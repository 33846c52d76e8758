"""The user's script runs alike everywhere: its files, draws, names by date and modules.

See DESIGN.md beside this file.
"""
