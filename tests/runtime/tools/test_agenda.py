"""A strike is due when its moment has come, and only once."""

from __future__ import annotations

from holdfast.runtime.tools.strike import (
    DEFAULT_BLOWS,
    Agenda,
    Progress,
    parse_plan,
    strikes_by_mtbf,
)


def _progress(*events: str, step: int = 0) -> Progress:
    progress = Progress()
    for event in events:
        progress.saw({"event": event})
    if step:
        progress.saw({"event": "step", "step": step})
    return progress


def _due(agenda: Agenda, seconds: float, progress: Progress) -> list[str]:
    return [str(strike) for strike in agenda.due(seconds, progress)]


def test_strike_waits_for_its_time() -> None:
    agenda = Agenda(parse_plan("kill agent at 2s"))

    assert _due(agenda, 1.9, _progress()) == []
    assert _due(agenda, 2.0, _progress()) == ["kill agent at 2s"]
    assert _due(agenda, 3.0, _progress()) == []


def test_strike_waits_for_its_step_and_a_rollback_does_not_undo_it() -> None:
    agenda = Agenda(parse_plan("kill agent at step 5\nkill pool at step 4"))
    progress = _progress(step=4)

    assert _due(agenda, 0, progress) == ["kill pool at step 4"]
    progress.saw({"event": "step", "step": 2})
    assert _due(agenda, 0, progress) == []
    progress.saw({"event": "step", "step": 6})
    assert _due(agenda, 0, progress) == ["kill agent at step 5"]


def test_strike_at_step_0_is_due_at_once() -> None:
    assert _due(Agenda(parse_plan("kill agent at step 0")), 0, _progress()) != []


def test_strike_waits_for_the_second_event() -> None:
    agenda = Agenda(parse_plan("kill agent on launch 2"))

    assert _due(agenda, 99, _progress("launch")) == []
    assert _due(agenda, 99, _progress("launch", "launch")) == ["kill agent on launch 2"]


def test_strikes_whose_moment_never_came_are_named() -> None:
    agenda = Agenda(parse_plan("kill agent at 1s\nkill pool on failure"))
    agenda.due(2.0, _progress())

    assert [str(strike) for strike in agenda.unstruck()] == ["kill pool on failure"]


def test_plan_without_end_is_taken_strike_by_strike() -> None:
    agenda = Agenda(strikes_by_mtbf(3, 10.0, DEFAULT_BLOWS), is_endless=True)
    counts = [len(agenda.due(seconds / 10, _progress())) for seconds in range(10_000)]

    assert 60 < sum(counts) < 140
    assert set(counts) == {0, 1}


def test_plan_without_end_has_nothing_that_never_came() -> None:
    agenda = Agenda(strikes_by_mtbf(3, 10.0, DEFAULT_BLOWS), is_endless=True)
    agenda.due(0.0, _progress())

    assert agenda.unstruck() == []


def test_strikes_at_the_same_moment_come_together_in_the_order_of_the_plan() -> None:
    plan = parse_plan("kill pool at 2s\nkill agent at step 3\nkill pool at 2s\nterm agent at 3s")
    agenda = Agenda(plan)

    assert agenda.due(2.5, _progress(step=3)) == list(plan[:3])
    assert agenda.unstruck() == list(plan[3:])
