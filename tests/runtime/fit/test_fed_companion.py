"""The mark of a pipeline travels with the notes of the companion, which hears all else itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from holdfast.recovery.ledger import Cursor
from holdfast.recovery.step import NO_EFFECTS, decide
from holdfast.recovery.work_plan import Work
from holdfast.runtime.data.feed import Feed, FeedTerms
from holdfast.runtime.data.source import generator_source
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.communicator import LocalCommunicator
from holdfast.runtime.fit.fit_data import FedCompanion, of_pipeline
from holdfast.runtime.training.companion import Alone, Commit

START = Cursor.start(1)
COMMIT = Commit(Work.TRAIN, START, 1, False, {}, None, None)
DECISION = decide([NO_EFFECTS])


class Recording:
    """A companion that returns its calls, and what it is asked for."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def hear(*arguments: Any, **by: Any) -> Any:
            self.heard.append((name, arguments, by))
            return f"the {name}"

        return hear


class Noting(Alone):
    """A companion with notes of its own."""

    def __init__(self) -> None:
        self.own = {"epoch": 3}
        self.restored: list[Any] = []

    def notes(self) -> dict[str, Any]:
        return self.own

    def restore(self, cursor: Cursor, notes: Any) -> None:
        self.restored.append((cursor, notes))


def feed(*values: int) -> Feed:
    """Return batches of these values, which can only be read one after the other."""
    elements = (np.full((2, 1), value, np.float32) for value in values)
    return Feed(generator_source(elements), FeedTerms(steps=len(values)))


def read(source: Feed, *steps: int) -> list[float]:
    found = (source.train_batch(step, LocalCommunicator()).parts[0] for step in steps)
    return [float(np.asarray(x)[0, 0]) for x in found]


def notes_after(*steps: int, values: tuple[int, ...] = (1, 2, 3)) -> Any:
    """Return the notes of a launch that has read these steps, as a checkpoint keeps them."""
    source = feed(*values)
    read(source, *steps)
    return json.loads(json.dumps(FedCompanion(Noting(), source).notes()))


def test_mark_of_the_last_batch_stands_beside_the_notes_of_the_companion() -> None:
    companion, source = Noting(), feed(1, 2)
    read(source, 0, 1)

    notes = FedCompanion(companion, source).notes()

    assert source.mark is not None
    assert notes == {"epoch": 3, "pipeline": [0, 1, source.mark.chain, 1]}
    assert companion.own == {"epoch": 3}


def test_pipeline_that_nobody_has_read_has_no_mark() -> None:
    assert FedCompanion(Noting(), feed(1)).notes() == {"epoch": 3}


def test_launch_that_reads_the_same_again_goes_on() -> None:
    companion, source = Noting(), feed(1, 2, 3)
    notes = notes_after(0, 1)

    FedCompanion(companion, source).restore(START, notes)

    assert read(source, 2) == [3.0]
    assert companion.restored == [(START, notes)]


def test_launch_that_reads_something_else_is_refused_at_the_batch_of_the_mark() -> None:
    source = feed(1, 9, 3)

    FedCompanion(Noting(), source).restore(START, notes_after(0, 1))

    with pytest.raises(ProgramError, match="other samples when it was read again, at or before "):
        read(source, 2)


def test_pass_that_was_not_read_from_its_beginning_proves_nothing() -> None:
    source, notes = feed(1, 9, 3), notes_after(0, 1)
    notes["pipeline"][3] = 0

    FedCompanion(Noting(), source).restore(START, notes)

    assert read(source, 2) == [3.0]


@pytest.mark.parametrize("notes", [None, {}, {"pipeline": None}], ids=str)
def test_notes_without_a_mark_leave_the_pipeline_as_it_is(notes: Any) -> None:
    companion, source = Noting(), feed(1, 9)

    FedCompanion(companion, source).restore(START, notes)

    assert read(source, 0, 1) == [1.0, 9.0]
    assert companion.restored == [(START, notes)]


@pytest.mark.parametrize(
    ("name", "arguments", "by"),
    [
        ("before", (Work.TRAIN, START), {}),
        ("after", (COMMIT,), {}),
        ("end", (), {}),
        ("lead", (), {"is_first": True}),
        ("lead", (), {"is_first": False}),
        ("decided", (DECISION, b"told", {"epoch": 1}), {}),
        ("load", ({"w": np.zeros(1)},), {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_companion_hears_what_the_loop_says(
    name: str, arguments: tuple[Any, ...], by: dict[str, Any]
) -> None:
    companion = Recording()

    getattr(FedCompanion(companion, feed(1)), name)(*arguments, **by)  # type: ignore[arg-type]

    assert companion.heard == [(name, arguments, by)]


@pytest.mark.parametrize("name", ["effects", "message", "tensors"])
def test_companion_answers_for_itself(name: str) -> None:
    fed = FedCompanion(Recording(), feed(1))  # type: ignore[arg-type]

    assert getattr(fed, name)() == f"the {name}"


@pytest.mark.parametrize("name", ["is_over", "cuts_epoch", "has_effects"])
@pytest.mark.parametrize("value", [True, False])
def test_companion_says_what_comes_next(name: str, *, value: bool) -> None:
    companion = Alone()
    setattr(companion, name, value)

    assert getattr(FedCompanion(companion, feed(1)), name) is value


def test_companion_of_arrays_stands_alone() -> None:
    companion, source = Alone(), feed(1)
    read(source, 0)

    assert of_pipeline(companion, [1, 2]) is companion
    assert "pipeline" in of_pipeline(companion, source).notes()
