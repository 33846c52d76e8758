"""Workers, and launches, that build different steps are told what differs, before the first one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_communicator import FakeCommunicator, run_world
from simulation import TinyReplica

from holdfast.recovery.ledger import Cursor
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.model.step_facts import GraphFacts, StepFacts
from holdfast.runtime.training.companion import Alone
from holdfast.runtime.training.consistency import (
    StepRecord,
    check_same_record,
    check_same_step,
    check_same_weights,
)
from holdfast.runtime.training.job_state import JobState

ALIVE = tuple(map(WorkerId, (4, 6, 7)))
START = Cursor.start(1)
MENDED = "; every worker runs the whole script, so all must build the same step: seed every random "


class Told(TinyReplica):
    """A replica that tells what its step is made of."""

    def __init__(self, **facts: Any) -> None:
        super().__init__()
        self.facts_told = {"whole": "a", "constants": {}, "read": {}, "settings": {}} | facts

    def facts(self) -> StepFacts:
        told = self.facts_told
        graphs = GraphFacts(told["whole"], "", told["constants"])
        return StepFacts(graphs, told["read"], lambda: told["settings"])


class Set(Alone):
    """A companion with settings."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings

    def settings(self) -> Mapping[str, str]:
        return self._settings


class Wider(TinyReplica):
    """A replica with weights of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = np.zeros(50, np.float32)


def state(settings: Mapping[str, str] | None = None, **facts: Any) -> JobState:
    return JobState(Told(**facts), Alone() if settings is None else Set(settings))


def moved(by: float) -> JobState:
    replica = TinyReplica()
    replica.weights += np.float32(by)
    return JobState(replica, Alone())


def compared(
    states: Sequence[JobState], check: Callable[[Membership, JobState, Cursor], None]
) -> str:
    """Return what all workers say when they compare; worker 5 has died before."""

    def program(communicator: FakeCommunicator) -> str:
        me, world = ALIVE[communicator.rank], World(2, ALIVE, len(ALIVE))
        membership = Membership(me, world, communicator, clock=lambda: 0.0)
        try:
            check(membership, states[communicator.rank], START)
        except ProgramError as error:
            return str(error)
        finally:
            communicator.leave()
        return "the same"

    said = {str(text) for text in run_world(len(states), program)}
    assert len(said) == 1, said
    return said.pop()


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        (state(), state(), "the same"),
        (state(settings={"patience of X": "3"}), state(), "the same"),
        (
            state({"patience of X": "3", "mode of X": "'min'"}),
            state({"patience of X": "4"}),
            "they differ in patience of X: 3 on worker 4, 4 on worker 7",
        ),
        (
            state(whole="a", constants={"a constant of the loss (x)": "2.5", "b": "1"}),
            state(whole="b", constants={"a constant of the loss (x)": "3", "b": "2"}),
            "they differ in a constant of the loss (x): 2.5 on worker 4, 3 on worker 7",
        ),
        (
            state(whole="a", constants={"x": "1", "y": "digest 1"}),
            state(whole="b", constants={"x": "1", "y": "digest 2"}),
            "they differ in y",
        ),
        (
            state(read={"the variable 'w' that the step reads": "1.0"}),
            state(read={"the variable 'w' that the step reads": "0.10000000149011612"}),
            "differ in the variable 'w' that the step reads: 1 on worker 4, 0.1 on worker 7",
        ),
        (state(whole="a"), state(whole="b"), "they differ in the operations of the step"),
        (
            JobState(TinyReplica(), Alone()),
            JobState(Wider(), Alone()),
            "in the shape of weights: (37,) float32 on worker 4, (50,) float32 on worker 7",
        ),
    ],
)
def test_what_differs_is_named(first: JobState, last: JobState, told: str) -> None:
    said = compared([first, first, last], check_same_step)

    if told == "the same":
        assert said == told
    else:
        assert said.startswith("workers 4 and 7 build different steps, ")
        assert f"{told}{MENDED}" in said


def test_settings_are_named_before_what_follows_from_them() -> None:
    few, many = (
        JobState(
            Told(whole=units, settings={"units of Dense 'd'": units}, constants={"size": units}),
            Alone(),
        )
        for units in ("12", "57")
    )

    said = compared([few, few, many], check_same_step)

    assert "they differ in units of Dense 'd': 12 on worker 4, 57 on worker 7" in said


def test_weights_that_differ_at_the_beginning_are_named() -> None:
    same, other = moved(0.0), moved(0.5)

    assert compared([same, same, same], check_same_weights) == "the same"
    said = compared([same, other, same], check_same_weights)
    assert said.startswith("workers 4 and 6 build different steps, they differ in the initial w")
    assert f"the initial weights of weights{MENDED}" in said


RECORD = StepRecord("keras", "script", "job", "operations", {"the loss": "a", "the step": "b"})
OTHER = {"the loss": "c", "the step": "b"}


def heard(before: StepRecord, now: StepRecord) -> list[str]:
    """Return what a user hears when a run goes on with another step."""
    lines: list[str] = []
    context: Any = SimpleNamespace(notify=lines.append)
    check_same_record(context, now, {"step": before.to_json()}, is_first=True)
    return lines


def test_launches_of_one_job_must_build_the_same_step() -> None:
    with pytest.raises(UsageError, match="a constant of the loss is another one now"):
        heard(RECORD, replace(RECORD, parts=OTHER))
    assert heard(RECORD, RECORD) == []


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"job": "another"}, 1),
        ({"job": ""}, 1),
        ({"script": "changed"}, 0),
        ({"made_by": "another Keras"}, 0),
        ({"operations": "others"}, 0),
    ],
)
def test_another_job_is_told_and_what_cannot_be_compared_is_taken(
    changes: dict[str, str], lines: int
) -> None:
    assert len(heard(RECORD, replace(RECORD, parts=OTHER, **changes))) == lines


def test_checkpoint_of_an_older_version_has_no_record() -> None:
    context: Any = SimpleNamespace()

    check_same_record(context, RECORD, {}, is_first=True)
    check_same_record(context, None, {"step": RECORD.to_json()}, is_first=True)
