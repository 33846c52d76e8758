"""A damaged checkpoint is mended while a job is restored, and a holder of no use costs a line."""

from __future__ import annotations

import errno
import random
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from committing_report import StrikeResult
from host_saves import plan_of
from mirrored_run import NEWEST, WRITERS, flip_a_byte, mirrored_run, shard, there
from resumed_run import Run

from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.repair import MendResult
from holdfast.checkpoint.retention import Retention
from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.agent_saver import ContextReport
from holdfast.runtime.saving.maintenance import CheckpointMaintenance
from holdfast.runtime.saving.mending import Mender, Mirror, MirrorUnusable


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


def remove(path: Path) -> None:
    shutil.rmtree(path)


def make_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("")


def make_it_another_runs(path: Path) -> None:
    RunDirectory(path).create_record(RunRecord("other", FORMAT, 0.0, 1, 0, 1))


def replace_the_store_by_a_file(path: Path) -> None:
    shutil.rmtree(path / "checkpoints")
    (path / "checkpoints").write_text("")


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (remove, "is not a directory"),
        (make_a_file, "is not a directory"),
        (make_it_another_runs, "holds run other, not run"),
        (replace_the_store_by_a_file, "cannot list"),
    ],
)
def test_holder_of_no_use_costs_one_line(
    run: Run, ranks: int, spoil: Callable[[Path], None], words: str
) -> None:
    assert run.second_holder is not None
    spoil(run.second_holder)
    flip_a_byte(run.store, shard(2), 5000)

    assert run.restore(ranks) == [(10, 1.0)] * ranks
    (failed,) = run.journal("mend_failed")
    assert failed["step"] is None
    assert words in failed["reason"]
    assert [words in text for text in run.notices] == [True, False, False]
    assert run.notices[2].startswith("training goes on from checkpoint step 10, because step 20 is")


def test_step_that_only_the_holder_has_is_not_called_damaged(run: Run) -> None:
    """The run directory has nothing that `holdfast repair` could mend."""
    flip_a_byte(there(run), shard(2), 5000)
    shutil.rmtree(run.store.directory / NEWEST)

    assert run.restore(2) == [(10, 1.0)] * 2
    assert any("checkpoint step 20 was not mended" in text for text in run.notices)
    assert not any("is damaged" in text for text in run.notices)


def test_new_run_begins_although_the_holder_is_of_another(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy has no RUN.json; its manifests say whose it is."""
    shutil.rmtree(run.store.directory)
    monkeypatch.setattr(Mirror, "__init__", _of_run("new", Mirror.__init__))

    assert run.restore(ranks=2) == [None, None]
    assert "holds run run, not new" in run.journal("mend_failed")[0]["reason"]


def _of_run(run_id: str, init: Callable[..., None]) -> Callable[..., None]:
    def made(mirror: Mirror, run_dir: Path, path: Path, _run_id: str, **others: object) -> None:
        init(mirror, run_dir, path, run_id, **others)

    return made


def test_holder_that_hangs_is_given_up(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run.second_holder is not None
    answered = threading.Event()
    plain = LocalFileSystem.list

    def listing(files: LocalFileSystem, path: Path) -> tuple[str, ...]:
        if path.is_relative_to(run.second_holder or ""):
            answered.wait()
        return plain(files, path)

    monkeypatch.setattr(LocalFileSystem, "list", listing)
    mirror = Mirror(run.store, run.second_holder, "run", call_within_s=0.01)
    try:
        with pytest.raises(MirrorUnusable, match=r"has not answered for 0\.01 s"):
            mirror.steps()
    finally:
        answered.set()
    with pytest.raises(MirrorUnusable, match="cannot be read: Connection timed out"):
        mirror.steps()


def test_mend_that_was_given_up_puts_nothing_in_place_though_it_has_all(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only our manifest is damaged, so the late mend needs no more of the mirror."""
    assert run.second_holder is not None
    (run.store.directory / NEWEST / "MANIFEST.json").write_bytes(b"{}")
    before = run.store.names()
    answered = threading.Event()
    plain = LocalFileSystem.open_read

    def open_read(files: LocalFileSystem, path: Path) -> int:
        if path.is_relative_to(run.second_holder or "") and path.suffix == ".h5":
            answered.wait()
        return plain(files, path)

    monkeypatch.setattr(LocalFileSystem, "open_read", open_read)
    mirror = Mirror(run.store, run.second_holder, "run", call_within_s=0.05)
    try:
        with pytest.raises(MirrorUnusable, match="has not answered"):
            mirror.mend(20)
    finally:
        answered.set()
    for thread in threading.enumerate():
        if thread.name == "holdfast-mirror":
            thread.join()

    assert run.store.names() == before


@pytest.mark.parametrize("ranks", [1, 3])
def test_holder_that_hangs_while_it_mends_does_nothing_later(
    run: Run, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    assert run.second_holder is not None
    flip_a_byte(run.store, shard(1), 5000)
    answered = threading.Event()
    plain = LocalFileSystem.open_read

    def open_read(files: LocalFileSystem, path: Path) -> int:
        if path.is_relative_to(run.second_holder or "") and path.suffix == ".h5":
            answered.wait()
        return plain(files, path)

    monkeypatch.setattr(LocalFileSystem, "open_read", open_read)
    monkeypatch.setattr(
        "holdfast.runtime.saving.mending.Mirror", partial(Mirror, call_within_s=0.2)
    )
    try:
        assert run.restore(ranks) == [(10, 1.0)] * ranks
    finally:
        answered.set()
    for thread in threading.enumerate():
        if thread.name == "holdfast-mirror":
            thread.join()
    (failed,) = run.journal("mend_failed")
    assert "has not answered for 0.2 s" in failed["reason"]
    assert run.store.names() == ("step-000000000010", NEWEST)


class _Died(BaseException):
    """The process is no more."""


CHANGES = ("mkdir", "create_exclusive", "write", "fsync", "fsync_directory", "rename_noreplace")


CHANGES += ("unlink", "rmdir")


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("damaged", ["here", "both"])
def test_death_of_the_mender_at_every_call_leaves_nothing_that_is_mistaken(
    run: Run, monkeypatch: pytest.MonkeyPatch, ranks: int, damaged: str
) -> None:
    """Whenever rank 0 dies, the next launch restores the newest step."""
    flip_a_byte(run.store, shard(1), 5000)
    if damaged == "both":
        flip_a_byte(there(run), shard(2), 5000)
    pristine = run.directory.with_name("pristine")
    shutil.copytree(run.directory / "checkpoints", pristine)
    moments = 0
    while True:
        moments += 1
        with monkeypatch.context() as patch:
            has_died = _die_at(moments, patch)
            first = run.restore(ranks)
        if not has_died:
            break
        assert first == [None] * ranks
        is_moved = ".bad-000000000020-g1-a1" in run.store.names()
        for step in run.store.steps() if is_moved else (10,):
            restore(run.store, step)
        assert run.restore(ranks) == [(20, 2.0)] * ranks, f"died at change {moments}"
        _care_for(run)
        assert not [name for name in run.store.names() if name.startswith(".tmp-")]
        shutil.rmtree(run.directory / "checkpoints")
        shutil.copytree(pristine, run.directory / "checkpoints")
    assert first == [(20, 2.0)] * ranks
    assert moments > 10


def _care_for(run: Run) -> None:
    """Let the next launch remove what the dead one has left."""
    plan = plan_of(run.directory, generation=2, retention=Retention(2))
    CheckpointMaintenance(plan, StrikeResult()).close(60.0)


def _die_at(moment: int, patch: pytest.MonkeyPatch) -> list[int]:
    """Let the process that mends die before its n-th change; then the list is not empty."""
    calls: list[str] = []
    has_died: list[int] = []

    def dying(name: str) -> Callable[..., object]:
        plain = getattr(LocalFileSystem, name)

        def call(*arguments: object) -> object:
            if threading.current_thread().name != "holdfast-mirror":
                return plain(*arguments)
            calls.append(name)
            if len(calls) >= moment:
                has_died.append(moment)
                raise _Died
            return plain(*arguments)

        return call

    for name in CHANGES:
        patch.setattr(LocalFileSystem, name, dying(name))
    mend = Mirror.mend

    def mend_or_die(mirror: Mirror, step: int) -> MendResult:
        try:
            return mend(mirror, step)
        except _Died:
            Run.die()
            raise

    patch.setattr(Mirror, "mend", mend_or_die)
    return has_died
