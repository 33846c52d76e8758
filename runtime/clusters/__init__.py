"""Hosts that are made on this machine, to lose them in tests."""
