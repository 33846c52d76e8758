"""TensorBoard's event files are written once, go on after a death, and hold no lost steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.script.overlay import Length, Overlay, length_of
from holdfast.runtime.script.saves import EventFiles

TOKEN = ".run-1"
NAME = f"events.out.tfevents.7{TOKEN}"


class Writer:
    """As TensorFlow's: it makes its file with the first flush, and keeps events until then."""

    def __init__(self, logdir: str, name: str = "events.out.tfevents.7") -> None:
        self.path = Path(logdir) / name
        self.kept = ""
        self.is_closed = False

    def write(self, event: str) -> None:
        self.kept += event

    def flush(self) -> None:
        if self.kept:
            with self.path.open("a") as file:
                file.write(self.kept)
            self.kept = ""

    def close(self) -> None:
        self.is_closed = True


class Worker:
    """One worker's event files, and one writer into ``logs``."""

    def __init__(self, tmp_path: Path, name: str, *, is_first: bool) -> None:
        self.scratch = tmp_path / name
        self.scratch.mkdir()
        self.logs = tmp_path / "logs"
        self.files = Overlay(is_first, lambda: self.scratch, lambda text: None)
        self.events = EventFiles(self.files, TOKEN)
        self.writer = self.begin()

    def begin(self, **by: Any) -> Any:
        return self.events.create_writer(Writer, self.logs, **by)

    def measure(self) -> dict[str, Length]:
        lengths: dict[str, Length] = {}
        self.events.measure(lengths)
        return lengths

    def agreed(self, lengths: dict[str, Length]) -> None:
        self.files.agreed(lengths)
        self.events.agreed()


@pytest.fixture
def first(tmp_path: Path) -> Worker:
    return Worker(tmp_path, "first", is_first=True)


@pytest.fixture
def second(tmp_path: Path) -> Worker:
    return Worker(tmp_path, "second", is_first=False)


def logged(worker: Worker) -> dict[str, str]:
    found = worker.logs.iterdir() if worker.logs.exists() else ()
    return {path.name: path.read_text() for path in found}


def round_of(event: str, first: Worker, second: Worker) -> None:
    """Let both workers write an event, and agree."""
    for worker in (first, second):
        worker.writer.write(event)
    lengths = first.measure()
    first.agreed(lengths)
    second.agreed(lengths)


def test_callback_writes_through_the_event_files_of_its_training_and_keeps_its_module(
    first: Worker,
) -> None:
    scalar = object()
    board = SimpleNamespace(summary=SimpleNamespace(create_file_writer=Writer, scalar=scalar))
    later = EventFiles(first.files, ".run-2")
    for events in (first.events, later):
        events.attach(board)
        board.summary = board._summary_module  # a property of Keras's callback

    made = board.summary.create_file_writer(str(first.logs), name="tfevents")
    made.write("a")
    later.measure({})

    assert made.path.parent.parent == first.scratch
    assert logged(first) == {"tfevents.run-2": "a"}
    assert board.summary.scalar is scalar


def test_only_the_first_worker_copies_events_to_the_folder_of_the_callback(
    first: Worker, second: Worker
) -> None:
    assert (first.measure(), logged(first)) == ({}, {})  # nobody has written an event

    round_of("a", first, second)
    round_of("b", first, second)

    assert logged(first) == {NAME: "ab"}
    assert list(first.measure()) == [str(first.logs / NAME)]  # without news, too
    assert first.files.lengths == {str(first.logs / NAME): length_of(first.logs / NAME)}


@pytest.mark.parametrize("written", ["", "b", "bbb"], ids=["nothing", "the round", "more"])
def test_next_first_worker_goes_on_in_the_file_of_the_dead_one(
    first: Worker, second: Worker, written: str
) -> None:
    round_of("a", first, second)
    with (first.logs / NAME).open("a") as file:
        file.write(written)
    second.writer.write("b")

    second.files.take_over()
    second.agreed(second.measure())
    second.writer.write("c")
    second.agreed(second.measure())

    assert logged(second) == {NAME: "abc"}


def test_next_first_worker_begins_the_file_that_the_dead_one_had_no_time_for(
    second: Worker,
) -> None:
    second.agreed({})
    second.writer.write("a")

    second.files.take_over()
    second.measure()

    assert logged(second) == {NAME: "a"}


def test_launch_that_resumes_removes_only_files_of_its_own_lost_steps(first: Worker) -> None:
    for name in (
        "tfevents.1.run-1",
        "tfevents.2.run-1",
        "tfevents.3.run-2",
        "tfevents.4",
        "a.run-1",
    ):
        (first.logs / name).write_text(name)
    kept = first.logs / "tfevents.1.run-1"
    first.files.restore({str(kept): length_of(kept)})
    first.writer.write("new")

    first.measure()

    assert set(logged(first)) == {
        *("tfevents.1.run-1", "tfevents.3.run-2", "tfevents.4", "a.run-1"),
        NAME,
    }


def test_two_writers_into_one_folder_leave_each_others_files_alone(first: Worker) -> None:
    other = first.begin(name="events.out.tfevents.8")
    first.writer.write("a")
    first.measure()
    other.write("b")

    first.measure()

    assert logged(first) == {NAME: "a", f"events.out.tfevents.8{TOKEN}": "b"}


def test_each_of_two_writers_goes_on_in_its_own_file_after_a_death(
    first: Worker, second: Worker, tmp_path: Path
) -> None:
    writers = []
    for worker in (first, second):
        worker.logs = tmp_path / "validation"
        writers.append(worker.begin())
    for writer in writers:
        writer.write("v")
    round_of("a", first, second)
    second.writer.write("b")

    second.files.take_over()
    second.measure()

    assert (tmp_path / "logs" / NAME).read_text() == "ab"
    assert logged(second) == {NAME: "v"}


def test_writers_are_closed_once_and_write_no_more(first: Worker) -> None:
    first.writer.write("a")
    first.events.close()

    assert first.writer.is_closed
    assert first.measure() == {}
    assert logged(first) == {}
