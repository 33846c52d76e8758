"""One worker reads, all have: through deaths of the reader, and for pipelines that change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fake_communicator import FakeCommunicator, run_world
from local_communicator import LocalCommunicator

from holdfast.recovery.work_plan import NO_END
from holdfast.runtime.data.feed import Feed, steps_of
from holdfast.runtime.data.source import ForwardSource, Source, forward
from holdfast.runtime.data.stream import Mark, SharedStream, StreamPosition
from holdfast.runtime.errors import ProgramError

BATCHES = 4


class Numbers(Source):
    """Passes of four batches; each batch tells its place, and what ``shift`` says of it."""

    name, advice = "the test's pipeline", "leave it alone"
    batches: int | None = BATCHES

    def __init__(self, shift: dict[tuple[int, int], int] | None = None) -> None:
        self.opened: list[tuple[int, int]] = []
        self.read: list[tuple[int, int]] = []
        self._shift = shift or {}

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        self.opened.append((number, start))
        return 0, self._pass(number)

    def leave(self, number: int, start: int) -> None:
        self.left = number, start

    def _pass(self, number: int) -> Iterator[Any]:
        for within in range(BATCHES):
            self.read.append((number, within))
            value = 10 * number + within + self._shift.get((number, within), 0)
            yield np.full((3, 1), value), np.arange(3)


def value_of(batch: Any) -> int:
    return int(batch.parts[0][0, 0])


def test_step_that_is_done_again_gets_its_batch_without_reading() -> None:
    source = Numbers()
    feed = Feed(source, BATCHES)
    for step in (0, 1, 1, 0, 2):
        assert value_of(feed.train_batch(step, LocalCommunicator())) == step
    assert source.read == [(0, 0), (0, 1), (0, 2)]


def test_relaunch_reads_the_pass_of_its_step_again() -> None:
    source = Numbers()
    feed = Feed(source, BATCHES)
    assert value_of(feed.train_batch(6, LocalCommunicator())) == 12
    assert source.read == [(1, 0), (1, 1), (1, 2)]


def run(sources: list[Any], steps: int, begin: int = 0) -> list[Any]:
    def member(communicator: FakeCommunicator) -> list[int]:
        feed = Feed(sources[communicator.rank], BATCHES)
        found = [value_of(feed.train_batch(begin + step, communicator)) for step in range(steps)]
        communicator.agree(1)
        return found

    return run_world(len(sources), member)


def test_one_worker_reads_and_all_have_the_batches() -> None:
    sources = [Numbers(), Numbers(), Numbers()]
    assert run(sources, 6) == [[0, 1, 2, 3, 10, 11]] * 3
    assert len(sources[0].read) == 6
    assert sources[1].read == sources[2].read == [(0, 0)]  # compared with the reader's


class Notes:
    """Notes whether a worker is at work that needs no peer."""

    def __init__(self) -> None:
        self.is_alone = False

    @contextmanager
    def needing_no_peer(self) -> Iterator[None]:
        self.is_alone = True
        yield
        self.is_alone = False


class WatchedNumbers(Numbers):
    """Notes what is done while other workers are taken to be waited for."""

    def __init__(self, notes: Notes) -> None:
        super().__init__()
        self.done: list[tuple[str, bool]] = []
        self._notes = notes

    def _pass(self, number: int) -> Iterator[Any]:
        try:
            for element in super()._pass(number):
                self.done.append(("read", self._notes.is_alone))
                yield element
        finally:
            self.done.append(("closed", self._notes.is_alone))


def test_no_worker_seems_to_wait_while_it_reads_its_own_first_batch() -> None:
    done: list[list[tuple[str, bool]]] = []

    def member(communicator: FakeCommunicator) -> None:
        notes = Notes()
        source = WatchedNumbers(notes)
        Feed(source, BATCHES).train_batch(0, communicator, notes.needing_no_peer)
        communicator.agree(1)
        if communicator.rank:
            done.append(source.done)

    run_world(3, member)
    assert done == [[("read", True), ("closed", True)]] * 2


def test_pipeline_that_differs_between_workers_is_named_and_not_trained() -> None:
    with pytest.raises(ProgramError, match=r"other samples to another worker, at .* batch 1 of"):
        run([Numbers(), Numbers({(0, 0): 5})], 2)


def test_next_reader_compares_what_the_first_one_has_sent() -> None:
    good, changed = Numbers(), Numbers({(1, 1): 5})
    seen = Feed(good, BATCHES)
    for step in range(7):
        seen.train_batch(step, LocalCommunicator())
    same, other = Feed(Numbers(), BATCHES), Feed(changed, BATCHES)
    for feed in (same, other):
        feed.resume(seen.mark)
    assert value_of(same.train_batch(7, LocalCommunicator())) == 13
    with pytest.raises(
        ProgramError, match=r"when it was read again, at or before batch 3 of pass 2"
    ):
        other.train_batch(7, LocalCommunicator())


def test_error_of_the_reader_is_that_of_all() -> None:
    class Broken(Numbers):
        def _pass(self, number: int) -> Iterator[Any]:
            yield np.zeros((3, 1)), np.zeros(2)

    failed: list[str] = []

    def member(communicator: FakeCommunicator) -> None:
        source = Broken() if communicator.rank == 0 else Numbers()
        try:
            Feed(source, 2).train_batch(0, communicator)
        except ProgramError as error:
            failed.append(str(error))

    run_world(3, member)
    assert len(failed) == 3
    assert len(set(failed)) == 1


def test_mark_of_survivors_is_that_of_the_reader() -> None:
    marks: list[Mark | None] = []

    def member(communicator: FakeCommunicator) -> None:
        shared = SharedStream(Numbers())
        for within in range(3):
            shared.fetch(StreamPosition(2, within), communicator)
        communicator.agree(1)
        marks.append(shared.mark)

    run_world(3, member)
    assert len(set(marks)) == 1
    assert marks[0] is not None
    assert (marks[0].position, marks[0].is_whole) == (StreamPosition(2, 2), True)


def test_forward_source_reads_what_came_before() -> None:
    numbers = Numbers()
    feed = Feed(forward(numbers), BATCHES)
    assert value_of(feed.train_batch(6, LocalCommunicator())) == 12
    assert numbers.read == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2)]


def test_next_feed_goes_on_alike_whoever_has_read() -> None:
    def endless() -> Iterator[Any]:
        for value in range(1000):
            yield np.full((3, 1), value), np.arange(3)

    def member(communicator: FakeCommunicator) -> list[int]:
        generator, found = endless(), []
        for _ in range(2):
            source = ForwardSource("the generator", lambda: generator, np.asarray, is_endless=True)
            feed = Feed(source, 3)
            found += [value_of(feed.train_batch(step, communicator)) for step in range(3)]
            feed.leave(3)
        found.append(int(next(generator)[0][0, 0]))
        communicator.agree(1)
        return found

    assert run_world(3, member) == [[0, 1, 2, 3, 4, 5, 6]] * 3


def test_feed_is_left_after_whole_passes() -> None:
    source = Numbers()
    Feed(source, BATCHES).leave(2 * BATCHES + 1)
    assert source.left == (2, 1)


def test_validation_that_never_came_leaves_its_first_batch_read() -> None:
    generator = iter([(np.full((3, 1), value), np.arange(3)) for value in range(3)])
    source = ForwardSource("the generator", lambda: generator, np.asarray, is_endless=True)
    feed = Feed(source, 2, is_validation=True)
    feed.first()  # on every worker: a model is prepared for its shapes

    feed.leave(0)

    assert int(next(generator)[0][0, 0]) == 1


@pytest.mark.parametrize("read", [3, 0])
def test_parts_of_passes_that_validate_are_left_alike(read: int) -> None:
    numbers = Numbers()
    feed = Feed(forward(numbers), 2, is_validation=True)
    feed.first()
    for number in range(read):
        for step in range(2):
            feed.validation_batch((number, step), LocalCommunicator())

    feed.leave(3 * 2)

    assert numbers.opened == [(number, 0) for number in range(4)]


def test_pipeline_that_ends_too_early_is_named() -> None:
    source = ForwardSource("the generator", lambda: iter([(np.zeros((2, 1)),)]), np.asarray)
    feed = Feed(source, 2)
    feed.train_batch(0, LocalCommunicator())
    words = r"the generator ended before batch 2 of pass 1: .*assert_cardinality\(1\)"
    with pytest.raises(ProgramError, match=words):
        feed.train_batch(1, LocalCommunicator())


def test_validation_of_a_pipeline_that_repeats_itself_has_several_passes() -> None:
    source = Numbers()
    source.repeats = True
    feed = Feed(source, 6, is_validation=True)
    found = [value_of(feed.validation_batch((1, step), LocalCommunicator())) for step in range(6)]
    assert found == [20, 21, 22, 23, 30, 31]
    feed.leave(12)
    assert source.left == (4, 0)


@pytest.mark.parametrize(
    ("batches", "asked", "steps"), [(4, None, 4), (4, 3, 3), (4, 9, 4), (None, 9, 9)]
)
def test_steps_of_an_epoch(batches: int | None, asked: int | None, steps: int) -> None:
    source = Numbers()
    source.batches = batches
    assert steps_of(source, asked, "steps_per_epoch") == steps


def test_training_may_have_no_end_and_validation_needs_a_number_of_steps() -> None:
    source = Numbers()
    source.batches = None
    assert steps_of(source, None, "steps_per_epoch") == NO_END
    with pytest.raises(ProgramError, match=r"validation_steps=\.\.\."):
        steps_of(source, None, "validation_steps")
