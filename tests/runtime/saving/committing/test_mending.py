"""A damaged checkpoint is mended while a job is restored, and all workers go on alike."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from pathlib import Path

import pytest
from mirrored_run import NEWEST, WRITERS, flip_a_byte, mirrored_run, shard, there
from resumed_run import Run

from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.repair import MendResult
from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.saving.mending import Mender, MirrorUnusable
from holdfast.runtime.saving.own_way import ContextReport


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return mirrored_run(tmp_path, monkeypatch)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(4))
def test_byte_anywhere_is_mended_and_all_go_on_from_the_newest_step(
    run: Run, ranks: int, seed: int
) -> None:
    print("seed", seed)
    dice = random.Random(100 * ranks + seed)
    name = dice.choice(["MANIFEST.json", *map(shard, range(WRITERS))])
    flip_a_byte(run.store, name, dice.randrange(1 << 30))

    assert run.restore(ranks) == [(20, 2.0)] * ranks
    (rejected,), (repaired,) = run.journal("rejected"), run.journal("mended")
    assert rejected["step"] == repaired["step"] == 20
    assert repaired["bad_name"] == ".bad-000000000020-g1-a1"
    assert repaired["holder"] == str(run.second_holder)
    assert (repaired["taken"] > 0) == (name != "MANIFEST.json")
    assert len([text for text in run.notices if "was mended" in text]) == 1
    assert run.restore(ranks) == [(20, 2.0)] * ranks
    assert len(run.journal("rejected")) == 1


@pytest.mark.parametrize("ranks", [1, 3])
def test_holders_with_different_damage_make_a_whole_step(run: Run, ranks: int) -> None:
    (run.store.directory / NEWEST / shard(0)).unlink()
    flip_a_byte(there(run), shard(1), 5000)
    flip_a_byte(there(run), "MANIFEST.json", 100)

    assert run.restore(ranks) == [(20, 2.0)] * ranks


@pytest.mark.parametrize("ranks", [1, 4])
def test_what_nobody_has_sends_all_to_the_older_step_after_one_attempt(
    run: Run, ranks: int
) -> None:
    flip_a_byte(run.store, shard(2), 5000)
    flip_a_byte(there(run), shard(2), 5000)

    assert run.restore(ranks) == [(10, 1.0)] * ranks
    (failed,) = run.journal("mend_failed")
    assert failed["step"] == 20
    assert "neither holder has" in failed["reason"]
    assert len(run.journal("rejected")) == 1
    assert run.store.names() == ("step-000000000010", NEWEST)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("lost", [[20], [10, 20]])
def test_step_that_only_the_second_holder_has_is_taken(
    run: Run, ranks: int, lost: list[int]
) -> None:
    for step in lost:
        shutil.rmtree(run.store.directory / f"step-{step:012d}")

    assert run.restore(ranks) == [(20, 2.0)] * ranks
    assert run.journal("rejected") == []
    (repaired,) = run.journal("mended")
    assert (repaired["taken"], repaired["bad_name"]) == (repaired["parts"], None)


def test_older_step_of_the_second_holder_is_better_than_none(run: Run) -> None:
    for store in (run.store, there(run)):
        flip_a_byte(store, shard(2), 5000)
    shutil.rmtree(run.store.directory / "step-000000000010")

    assert run.restore(ranks=2) == [(10, 1.0)] * 2


def test_run_of_which_nothing_is_valid_anywhere_is_refused_by_all(run: Run) -> None:
    for store in (run.store, there(run)):
        for manifest in store.directory.glob("*/MANIFEST.json"):
            manifest.unlink()

    with pytest.raises(RecoveryImpossible, match="none of the 2 checkpoints"):
        run.restore(ranks=2)


def test_error_of_one_worker_alone_is_tried_again_and_then_given_way_to(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 finds nothing to mend: the step is whole, and only rank 2 cannot read it."""
    plain = LocalFileSystem.open_read

    def open_read(files: LocalFileSystem, path: Path) -> int:
        is_newest = path.parent.name == NEWEST and path.suffix == ".h5"
        if is_newest and run.rank_of(threading.get_ident()) == 2:
            raise OSError(errno.EMFILE, "too many open files")
        return plain(files, path)

    monkeypatch.setattr(LocalFileSystem, "open_read", open_read)

    assert run.restore(ranks=3) == [(10, 1.0)] * 3
    assert [record["step"] for record in run.journal("unreadable")] == [20, 20]
    assert run.journal("rejected") == run.journal("mended") == run.journal("mend_failed") == []
    assert NEWEST in run.store.names()


class _Holder:
    """A second holder that does what it is told."""

    def __init__(self, name: str, steps: tuple[int, ...], *, can: bool) -> None:
        self.name = name
        self.asked: list[int] = []
        self._steps = steps
        self._can = can

    def steps(self) -> tuple[int, ...]:
        if not self._steps:
            raise MirrorUnusable("it is empty")
        return self._steps

    def mend(self, step: int) -> MendResult:
        self.asked.append(step)
        if not self._can:
            raise MirrorUnusable("it lacks it")
        return MendResult(step, ("a bit",), 1, 9)


def test_holders_are_asked_in_turn_and_those_of_no_use_not_at_all(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    holders = [
        _Holder("empty", (), can=True),
        _Holder("lacking", (30,), can=False),
        _Holder("good", (20, 10), can=True),
        _Holder("late", (10,), can=True),
    ]
    mender = Mender(ContextReport(run.context()), tuple(holders))

    assert mender.has_holders
    assert mender.steps() == {10, 20, 30}
    result = mender.mend(20)

    assert result is not None
    assert result.step == 20
    assert [holder.asked for holder in holders] == [[], [20], [20], []]
    assert [(r["holder"], r["step"]) for r in run.journal("mend_failed")] == [
        ("empty", None),
        ("lacking", 20),
    ]
    assert [record["holder"] for record in run.journal("mended")] == ["good"]
    assert run.notices == [
        "no checkpoint can be mended from empty: it is empty",
        "checkpoint step 20 was not mended from lacking: it lacks it",
        "checkpoint step 20 was mended, 1 of 9 parts from good",
    ]
