"""How often a job may be relaunched before it gives up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartBudget:
    """The relaunches that a job may make, and what it has spent of them."""

    limit: int
    spent: int = 0

    def __post_init__(self) -> None:
        """Refuse negative amounts."""
        if self.limit < 0 or self.spent < 0:
            raise ValueError(
                f"limit ({self.limit}) and spent ({self.spent}) of a budget must be at least 0"
            )

    def charge(self, *, made_progress: bool) -> RestartBudget:
        """Return the budget after one more relaunch.

        A launch that committed no step costs double: what stops it will likely stop the next.
        """
        return RestartBudget(self.limit, self.spent + (1 if made_progress else 2))

    @property
    def is_spent(self) -> bool:
        """Whether more was charged than allowed, so that the job must end."""
        return self.spent > self.limit
