"""Errors of decisions.

::

    RecoveryError
     ├─ FaultSyntaxError     the text of a fault cannot be understood
     ├─ FaultConflict        two faults of a plan have one address
     ├─ IllegalTransition    a machine got an event that its table does not list
     ├─ LeafMissing          a partial sum was asked for before its leaves were there
     ├─ LedgerUnreadable     reduced ledger lanes are not whole numbers
     └─ ScheduleSyntaxError  the text of a schedule cannot be understood

A mistake of a caller within holdfast (a negative count, a worker that is not in the
world) is a ``ValueError``.  No caller handles those.
"""

from __future__ import annotations


class RecoveryError(Exception):
    """A decision could not be made."""


class FaultSyntaxError(RecoveryError):
    """The text of a fault cannot be understood."""


class FaultConflict(RecoveryError):
    """Two faults of a plan have one address."""


class IllegalTransition(RecoveryError):
    """A machine got an event that its table does not list; its state is unchanged."""


class LeafMissing(RecoveryError):
    """A partial sum was asked for before all of its leaves were added."""


class LedgerUnreadable(RecoveryError):
    """Reduced ledger lanes are not the whole numbers that workers put in."""


class ScheduleSyntaxError(RecoveryError):
    """The text of a schedule cannot be understood."""
