"""The budget of relaunches: each is charged, and progress pays earlier charges back."""

from __future__ import annotations

from dataclasses import dataclass

CHECKPOINTS_OF_A_REFUND = 3
"""So many checkpoints of one launch pay one earlier relaunch back."""


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """The relaunches that a job may make, and the charges so far."""

    limit: int
    spent: int = 0

    def __post_init__(self) -> None:
        """Refuse negative amounts."""
        if self.limit < 0 or self.spent < 0:
            raise ValueError(
                f"limit ({self.limit}) and spent ({self.spent}) of a budget must be at least 0"
            )

    def charge(self, checkpoints: int) -> RestartBudget:
        """Return the budget after one more relaunch; the lost launch has committed checkpoints.

        A launch that committed none costs double: its cause will likely stop the next.  One
        that committed several pays earlier charges back: a job of months that goes on in
        spite of its losses does not end by their number.
        """
        return RestartBudget(self.limit, self._left(checkpoints) + _cost(checkpoints))

    def refund(self, checkpoints: int) -> RestartBudget:
        """Return the budget after a launch that was not lost, and has committed checkpoints."""
        return RestartBudget(self.limit, self._left(checkpoints))

    def refusal(self, checkpoints: int) -> str:
        """Return in words why another relaunch would cost more than is left."""
        cost = _cost(checkpoints)
        why = ", as the last launch made no checkpoint" if cost > 1 else ""
        return (
            f"the restart budget of {self.limit} allows no other relaunch: "
            f"{self._left(checkpoints)} is spent, and the next one costs {cost}{why}"
        )

    def _left(self, checkpoints: int) -> int:
        return max(0, self.spent - checkpoints // CHECKPOINTS_OF_A_REFUND)

    @property
    def is_spent(self) -> bool:
        """Whether more was charged than allowed, so that the job must end."""
        return self.spent > self.limit


def _cost(checkpoints: int) -> int:
    """Return the charge of a relaunch after a launch that has committed ``checkpoints``."""
    return 1 if checkpoints else 2
