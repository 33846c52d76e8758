"""A second holder that is of no use costs one line, and never fails a restore."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from mirrored_run import NEWEST, flip_a_byte, mirrored_run, shard, there
from resumed_run import Run

from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.mending import Mirror, MirrorUnusable


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return mirrored_run(tmp_path, monkeypatch)


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
