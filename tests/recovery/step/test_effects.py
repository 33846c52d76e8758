"""One decision for all workers, whatever their callbacks have come to."""

from __future__ import annotations

import pytest

from holdfast.recovery.step import Decision, Effects, decide

QUIET = Effects(wants_stop=False, notes=b"n", state=b"s")
STOP = Effects(wants_stop=True, notes=b"n", state=b"s")
OTHER_NOTES = Effects(wants_stop=False, notes=b"m", state=b"s")
OTHER_STATE = Effects(wants_stop=False, notes=b"n", state=b"t")


@pytest.mark.parametrize(
    ("effects", "decision"),
    [
        ([QUIET], Decision(False, False, False)),
        ([STOP], Decision(True, False, False)),
        ([OTHER_STATE], Decision(False, False, False)),
        ([QUIET, QUIET, QUIET], Decision(False, False, False)),
        ([QUIET, STOP], Decision(True, False, False)),
        ([STOP, QUIET, QUIET], Decision(True, False, False)),
        ([QUIET, OTHER_NOTES], Decision(False, True, False)),
        ([OTHER_NOTES, QUIET], Decision(False, True, False)),
        ([QUIET, QUIET, OTHER_STATE], Decision(False, False, True)),
        ([OTHER_NOTES, OTHER_STATE, STOP], Decision(True, True, True)),
    ],
)
def test_one_decision_follows_from_all_effects(effects: list[Effects], decision: Decision) -> None:
    assert decide(effects) == decision
