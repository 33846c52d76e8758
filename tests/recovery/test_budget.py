from __future__ import annotations

import pytest

from holdfast.recovery.job import RestartBudget


@pytest.mark.parametrize(
    ("limit", "progress", "spent"),
    [
        (3, [], 0),
        (3, [True, True, True], 3),
        (3, [True, True, True, True], 4),
        (3, [False], 2),
        (3, [False, False], 4),
        (0, [], 0),
        (0, [True], 1),
    ],
)
def test_relaunches_without_progress_cost_double(
    limit: int, progress: list[bool], spent: int
) -> None:
    budget = RestartBudget(limit)

    for made_progress in progress:
        budget = budget.charge(made_progress=made_progress)

    assert budget == RestartBudget(limit, spent)
    assert budget.is_spent is (spent > limit)


def test_charge_returns_a_new_budget() -> None:
    budget = RestartBudget(2)

    budget.charge(made_progress=False)

    assert budget.spent == 0


@pytest.mark.parametrize(("limit", "spent"), [(-1, 0), (1, -1)])
def test_negative_budget_is_refused(limit: int, spent: int) -> None:
    with pytest.raises(ValueError, match="must be at least 0"):
        RestartBudget(limit, spent)
