"""When a job must stop, by a clock of our own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.batch.schedulers import LEAVE_S, UNMEASURED_S, Deadline, Due, earliest

HOUR = Deadline(begun_at=0.0, ends_at=3600.0, source="squeue")


@pytest.mark.parametrize(
    ("deadline", "lead_s"),
    [
        (HOUR, LEAVE_S + UNMEASURED_S),
        (HOUR.saved(0.5, 0.25), LEAVE_S + 1.5),
        (HOUR.saved(120.0, 30.0), LEAVE_S + 300.0),
        (HOUR.saved(120.0, 30.0).saved(1.0, 1.0), LEAVE_S + 300.0),
        (HOUR.saved(5000.0, 0.0), 1800.0),
        (Deadline(0.0, 30.0, "--deadline"), 15.0),
        (Deadline(50.0, 20.0, "squeue"), 0.0),
    ],
    ids=[
        "nothing measured", "short saves", "long saves", "the longest counts",
        "never more than half", "a short job", "over before it began",
    ],
)  # fmt: skip
def test_lead(deadline: Deadline, lead_s: float) -> None:
    assert deadline.lead_s == lead_s


def test_save_is_due_first_and_the_end_follows() -> None:
    measured = HOUR.saved(20.0, 10.0)  # 70 s ahead, and 10 s to leave

    moments = (3229.9, 3230.0, 3529.9, 3530.0, 3589.9, 3590.0, 9999.0)
    seen = [(now, measured.look(now).due) for now in moments]

    assert seen == [
        (3229.9, Due.NOTHING), (3230.0, Due.HURRY), (3529.9, Due.HURRY), (3530.0, Due.SAVE),
        (3589.9, Due.SAVE), (3590.0, Due.END), (9999.0, Due.END),
    ]  # fmt: skip


def test_time_that_jumps_back_takes_nothing_back() -> None:
    assert HOUR.look(3599.0).look(10.0).due is Due.END


def test_earlier_deadline_counts() -> None:
    sooner = Deadline(0.0, 60.0, "--deadline")

    assert earliest(HOUR, None, sooner) is sooner
    assert earliest(None, HOUR) is HOUR
    assert earliest(None, None) is None


_SECONDS = st.floats(0.0, 1e6)


@given(_SECONDS, _SECONDS, _SECONDS)
def test_save_is_due_before_the_end_and_not_in_the_first_half(
    whole_s: float, save_s: float, step_s: float
) -> None:
    deadline = Deadline(0.0, whole_s, "").saved(save_s, step_s)

    assert deadline.look(whole_s / 2 - 1.0).due <= Due.HURRY
    assert deadline.look(whole_s).due is Due.END
    assert 0.0 <= deadline.lead_s <= whole_s / 2


def test_one_slow_save_does_not_move_the_end_for_good() -> None:
    deadline = Deadline(0.0, 86400.0, "").saved(3600.0, 1.0)
    assert deadline.lead_s == 10.0 + 2 * 3601.0

    for _ in range(4):
        deadline = deadline.saved(5.0, 1.0)
    assert deadline.lead_s == 10.0 + 2 * 3601.0
    assert deadline.saved(5.0, 1.0).lead_s == 10.0 + 2 * 6.0
