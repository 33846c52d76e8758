"""Old steps are read again in turn; a damaged one is reported, and moved while another is good."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from fake_filesystem import FakeFileSystem
from holders import damage, fill
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.known_steps import OwnSteps, ReadMarks
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.repair import MendResult
from holdfast.checkpoint.scrub import Reading, Scrubber, next_step
from holdfast.checkpoint.store import CheckpointStore

GENERATION = 7


def scrubber_of(store: CheckpointStore) -> tuple[Scrubber, ReadMarks]:
    marks = ReadMarks()
    return Scrubber(OwnSteps(store), marks, GENERATION, interval_s=10.0), marks


@pytest.mark.parametrize(
    ("steps", "times", "expected"),
    [
        ((), {}, None),
        ((30, 20, 10), {}, 10),
        ((30, 20, 10), {10: 5.0}, 20),
        ((30, 20, 10), {10: 5.0, 20: 1.0, 30: 9.0}, 20),
        ((30, 20, 10), {10: 0.0, 20: 0.0, 30: 0.0}, 10),
        ((30, 20), {10: 0.0, 20: 2.0, 30: 1.0}, 30),
    ],
)
def test_next_step_is_the_one_verified_longest_ago(
    steps: tuple[int, ...], times: dict[int, float], expected: int | None
) -> None:
    assert next_step(steps, times.get) == expected


@given(st.sets(st.integers(0, 50), min_size=1, max_size=8))
def test_every_step_has_its_turn(steps: set[int]) -> None:
    times: dict[int, float] = {}
    for now in range(2 * len(steps)):
        chosen = next_step(steps, times.get)
        assert chosen is not None
        times[chosen] = float(now)

    assert times.keys() == steps
    assert min(times.values()) >= len(steps)


def test_one_step_an_interval(store: CheckpointStore) -> None:
    fill(store, 10, 20)
    scrubber, marks = scrubber_of(store)

    assert not scrubber.due(100.0)
    assert not scrubber.due(109.0)
    assert scrubber.due(110.0)
    assert scrubber.run_one(110.0) is None
    assert not scrubber.due(119.0)
    assert scrubber.due(120.0)
    assert scrubber.run_one(120.0) is None
    assert (marks.time_of(10), marks.time_of(20)) == (110.0, 120.0)


def test_empty_store_has_nothing_to_read(tmp_path: Path) -> None:
    scrubber, _ = scrubber_of(CheckpointStore(tmp_path / "missing"))

    assert scrubber.run_one(0.0) is None


def test_damaged_step_is_moved_aside(store: CheckpointStore) -> None:
    fill(store, 10, 20, 30)
    damage(store, 10)
    scrubber, marks = scrubber_of(store)

    failure = scrubber.run_one(5.0)

    assert failure is not None
    assert (failure.step, failure.moved_to) == (10, ".bad-000000000010-g7-a1")
    assert "digest" in failure.reason
    assert str(failure) == (
        f"checkpoint step 10 does not verify any more: {failure.reason}; "
        "it was moved to .bad-000000000010-g7-a1; look at the disk"
    )
    assert store.steps() == (30, 20)
    assert 10 not in marks
    assert 30 in marks


def test_moving_never_hides_what_was_moved_before(store: CheckpointStore) -> None:
    fill(store, 20)
    scrubber, _ = scrubber_of(store)
    for attempt in (1, 2):
        fill(store, 10)
        damage(store, 10)

        failure = scrubber.run_one(float(attempt)) or scrubber.conclude(Reading(10, "bad"), 0.0)

        assert failure is not None
        assert failure.moved_to == f".bad-000000000010-g7-a{attempt}"


def test_last_good_step_is_needed_to_move_a_damaged_one(store: CheckpointStore) -> None:
    fill(store, 10, 20)
    damage(store, 10)
    damage(store, 20)
    scrubber, _ = scrubber_of(store)

    failure = scrubber.run_one(5.0)

    assert failure is not None
    assert failure.moved_to is None
    assert "stays where it is" in str(failure)
    assert store.steps() == (20, 10)


def test_what_is_found_is_looked_at_again_before_anything_is_moved(store: CheckpointStore) -> None:
    fill(store, 10, 20)
    scrubber, marks = scrubber_of(store)

    assert scrubber.conclude(Reading(10, "it was saved again meanwhile"), 5.0) is None
    assert scrubber.conclude(Reading(15, "it was removed meanwhile"), 5.0) is None
    assert store.steps() == (20, 10)
    assert 10 in marks


def test_nothing_is_ever_due_without_an_interval(store: CheckpointStore) -> None:
    fill(store, 10)
    scrubber = Scrubber(OwnSteps(store), ReadMarks(), GENERATION, interval_s=0.0)

    assert not any(scrubber.due(now) for now in (0.0, 1.0, 1e9))


def test_damaged_step_is_mended_before_it_is_moved(store: CheckpointStore) -> None:
    fill(store, 10, 20)
    damage(store, 10)
    asked: list[int] = []

    def mend(step: int) -> MendResult:
        asked.append(step)
        return MendResult(step, ("a bit",), 1, 2, ".bad-1")

    marks = ReadMarks()
    failure = Scrubber(OwnSteps(store), marks, GENERATION, 10.0, mend).run_one(5.0)

    assert failure is not None
    assert (failure.step, failure.moved_to, failure.is_mended) == (10, ".bad-1", True)
    assert str(failure).endswith("it was mended; look at the disk")
    assert asked == [10]
    assert marks.time_of(10) == 5.0
    assert store.steps() == (20, 10)


def test_step_that_cannot_be_mended_is_moved(store: CheckpointStore) -> None:
    fill(store, 10, 20)
    damage(store, 10)

    failure = Scrubber(OwnSteps(store), ReadMarks(), GENERATION, 10.0, lambda step: None).run_one(
        5.0
    )

    assert failure is not None
    assert (failure.moved_to, failure.is_mended) == (".bad-000000000010-g7-a1", False)


def test_step_in_which_the_mender_finds_nothing_stays_unverified(store: CheckpointStore) -> None:
    fill(store, 10, 20)
    damage(store, 10)
    marks = ReadMarks()

    failure = Scrubber(OwnSteps(store), marks, GENERATION, 10.0, MendResult).run_one(5.0)

    assert failure is not None
    assert (failure.moved_to, failure.is_mended) == (None, False)
    assert 10 not in marks
    assert store.steps() == (20, 10)


def test_step_that_is_saved_again_while_others_are_read_stays(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 10, 20)
    damage(store, 10)
    plain = ReadMarks.verify

    def verify(marks: ReadMarks, place: CheckpointStore, step: int, now: float) -> str | None:
        fill(store, 10)
        return plain(marks, place, step, now)

    monkeypatch.setattr(ReadMarks, "verify", verify)
    scrubber, marks = scrubber_of(store)

    assert scrubber.run_one(5.0) is None

    assert store.steps() == (20, 10)
    assert store.scan(10).verify().step == 10
    assert not marks.is_damaged(10)


def test_step_that_was_moved_is_told_so_though_the_sync_failed(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 10, 20)
    damage(store, 10)

    def fsync_directory(path: Path) -> None:
        raise StorageFailed("fsync directory", path, OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr(store.disk, "fsync_directory", fsync_directory)

    failure = scrubber_of(store)[0].run_one(5.0)

    assert failure is not None
    assert failure.moved_to in store.names()


def test_bad_block_is_mended_too() -> None:
    filesystem = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), filesystem)
    fill(store, 10, 20)
    scrubber = Scrubber(
        OwnSteps(store), ReadMarks(), GENERATION, 10.0, lambda step: MendResult(step, ("a",))
    )
    reads = [
        n for n, call in enumerate(_calls_of_a_conclusion(store, filesystem)) if "read" in call
    ]
    assert reads

    filesystem.fail_at(len(filesystem.calls) + reads[0], errno.EIO)
    failure = scrubber.conclude(Reading(10, "it could not be read"), 0.0)

    assert failure is not None
    assert failure.is_mended
    assert "EIO" in failure.reason


def _calls_of_a_conclusion(store: CheckpointStore, filesystem: FakeFileSystem) -> list[str]:
    before = len(filesystem.calls)
    scrubber_of(store)[0].conclude(Reading(10, "it could not be read"), 0.0)
    return [str(call) for call in filesystem.calls[before:]]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE, errno.ENOSPC])
def test_failing_calls_never_raise_and_never_cost_a_good_step(number: int) -> None:
    run_dir = Path("/run/job")
    undisturbed = FakeFileSystem()
    fill(CheckpointStore(run_dir, undisturbed), 10, 20)
    before = len(undisturbed.calls)
    scrubber_of(CheckpointStore(run_dir, undisturbed))[0].run_one(0.0)

    for call in range(before, len(undisturbed.calls)):
        filesystem = FakeFileSystem()
        store = CheckpointStore(run_dir, filesystem)
        fill(store, 10, 20)
        filesystem.fail_at(call, number)

        scrubber_of(store)[0].run_one(0.0)

        assert store.steps() == (20, 10), filesystem.calls[call]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_failing_calls_leave_a_good_step_while_a_damaged_one_is_moved(
    number: int,
) -> None:
    store, undisturbed = damaged_fake()
    before = len(undisturbed.calls)
    assert scrubber_of(store)[0].run_one(0.0) is not None

    for call in range(before, len(undisturbed.calls)):
        store, filesystem = damaged_fake()
        filesystem.fail_at(call, number)

        scrubber_of(store)[0].run_one(0.0)

        assert 20 in store.steps(), filesystem.calls[call]
        restored, _ = restore_newest(store)
        assert restored is not None
        assert restored.manifest.step == 20


def damaged_fake() -> tuple[CheckpointStore, FakeFileSystem]:
    """Return a store of two steps; the older one holds another step's manifest."""
    filesystem = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), filesystem)
    fill(store, 10, 15, 20)
    directory = store.directory
    store.disk.remove_tree(directory / "step-000000000010")
    store.disk.rename(directory / "step-000000000015", directory / "step-000000000010")
    return store, filesystem


def test_step_that_cannot_be_read_takes_no_turn_of_the_others(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no mark, and was chosen for ever."""
    fill(store, 10, 20, 30)
    scrubber, _ = scrubber_of(store)
    monkeypatch.setattr(ReadMarks, "mark", lambda *arguments: None)

    assert [scrubber.choose(now) for now in (1.0, 2.0, 3.0, 4.0)] == [10, 20, 30, 10]


def test_steps_that_come_faster_than_they_are_read_keep_no_old_one_from_its_turn(
    store: CheckpointStore,
) -> None:
    """They were all read once before any was read again."""
    fill(store, 10, 20)
    scrubber, _ = scrubber_of(store)
    read = []
    for turn in range(8):
        chosen = scrubber.choose(float(turn))
        assert chosen is not None
        read.append(chosen)
        fill(store, 100 + 10 * turn, 105 + 10 * turn)  # two for each that is read

    assert read[:4] == [10, 20, 10, 20]
    assert read.count(10) >= 2
