"""A module whose import raises something that is no ImportError."""

raise RuntimeError("no licence found")
