"""``holdfast inspect``, ``verify`` and ``repair`` over whole, damaged and unread
checkpoints.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journal_entries import WrittenJournal
from whole_save import save

from holdfast.checkpoint.errors import TRANSIENT
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.repair import StepCheck, verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.commands.inspect import position_of
from holdfast.runtime.run import files as files_module
from holdfast.runtime.run.run_directory import RunDirectory

Holdfast = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        *(
            (f"{command} {words}", complaint)
            for command in ("verify", "inspect")
            for words, complaint in (
                ("nowhere", "nowhere does not exist"),
                ("empty", "empty is no run: it has no RUN.json"),
                ("run --step 5", "has no step 5; it has 6, 4"),
                ("run --step x", "'x' is not a valid integer"),
            )
        ),
        ("verify run --all --step 4", "exclude each other"),
        ("inspect run --diff 4 5", "has no step 5"),
        ("inspect run --diff 4 nowhere", "nowhere does not exist"),
        ("inspect run --diff 4 6 --step 4", "exclude each other"),
        ("repair run", "Missing option '--from'"),
        ("repair run --from run", "itself; give another copy"),
        ("repair run --from nowhere", "nowhere does not exist"),
        ("repair run --from mirror --step 5", "mirror has no step 5; it has 6, 4"),
        ("repair run --from another", "another holds run b, and run is run 00aa11bb22cc33dd"),
    ],
)
def test_bad_requests_are_one_sentence_and_exit_2(
    request_: str, complaint: str, holdfast: Holdfast, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mirror.parent)
    Path("empty").mkdir()
    record = Path(shutil.copytree(mirror, "another"), "RUN.json")
    record.write_text(record.read_text().replace("00aa11bb22cc33dd", "b"))

    code, out, err = holdfast(*request_.split())

    assert (code, out) == (2, "")
    assert complaint in err


def test_step_that_is_missing_is_answered_with_what_is_known(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    journal = WrittenJournal(tmp_path / "journal.jsonl", run_id="r", source="writer")
    none = holdfast("verify", tmp_path)[2]
    journal.record("checkpoint", step=20, seconds=0.5, bytes=9, generation=1)
    journal.close()
    removed = holdfast("inspect", tmp_path)[2]
    for step in range(1, 13):
        (tmp_path / f"checkpoints/step-{step:012d}").mkdir(parents=True)

    assert f"{tmp_path} holds no checkpoint: its run has saved none yet" in none
    assert "no checkpoint: its journal knows of step 20, which was removed" in removed
    known = "has no step 99; it has 12, 11, 10, 9, 8, 7, 6, 5, 4, 3 and older ones"
    assert known in holdfast("verify", tmp_path, "--step", 99)[2]


@pytest.mark.parametrize(
    ("cursor", "position"),
    [
        ((3, 100, 30), [0, 3, 4]),
        ((4, 100, 30), [1, 0, 4]),
        ((5, 90, 30), [1, 2, 3]),
        ((5, 1, 30), [5, 0, 1]),
        ((5, 0, 30), None),
        ((5, 90, -3), None),
        ((5, 90, "30"), None),
        ((None, 90, 30), None),
    ],
)
def test_position_counts_whole_epochs_and_updates_of_the_next(
    cursor: tuple[object, ...], position: list[int] | None
) -> None:
    names = ("step", "samples", "global batch")
    found = position_of(dict(zip(names, cursor, strict=True)))

    assert (found and list(found.values())) == position


def test_step_too_large_to_be_read_at_once_is_left_to_verify(
    holdfast: Holdfast, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.commands.inspect._READ_AT_ONCE_BYTES", 100)

    code, out, _ = holdfast("inspect", run_dir)

    assert code == 0
    assert "not known: `holdfast verify` reads" in out


@pytest.mark.parametrize("columns", [None, "20"], ids=["file", "narrow terminal"])
def test_names_of_tensors_are_neither_broken_nor_cut(
    holdfast: Holdfast, mirror: Path, monkeypatch: pytest.MonkeyPatch, columns: str | None
) -> None:
    monkeypatch.delenv("COLUMNS")
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    name = "optimizer/adam/" + "functional_1_" * 6 + "momentum"
    save(CheckpointStore(mirror), {name: np.zeros(2)}, header=Header("x", 1, 9))

    lines = holdfast("inspect", mirror, "--diff", 6, 9)[1].splitlines()

    assert {name, "optimizer/sgd/iterations"} <= set(lines)


def _shard(run_dir: Path, step: int, index: int = 0) -> Path:
    return run_dir / f"checkpoints/step-{step:012d}/shard-{index:05d}-of-00002.h5"


def _manifest(run_dir: Path, step: int) -> Path:
    return run_dir / f"checkpoints/step-{step:012d}/MANIFEST.json"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: _flip(_shard(run, 6)), "have a wrong digest"),
        (lambda run: os.truncate(_shard(run, 6, 1), 99), "shard 1 has 99 of "),
        (lambda run: _shard(run, 6, 1).unlink(), "shard-00001-of-00002.h5: No such file"),
        (lambda run: os.truncate(_manifest(run, 6), 99), "damaged or cut short"),
        (lambda run: _manifest(run, 6).unlink(), "MANIFEST.json: No such file"),
    ],
)
def test_damage_is_exit_1_and_one_line_with_the_reason(
    damage: Callable[[Path], None], reason: str, holdfast: Holdfast, run_dir: Path
) -> None:
    damage(run_dir)

    code, out, err = holdfast("verify", run_dir, "--all")

    newest, older = out.splitlines()
    assert code == 1
    assert f"`holdfast repair {run_dir} --from COPY`, or remove {run_dir}/checkpoints/" in err
    assert err.endswith("step-000000000006\n")
    assert newest.startswith("step 6: not valid: ")
    assert reason in newest
    assert older.startswith("step 4: valid")


def test_step_that_the_job_removes_meanwhile_is_not_damaged(
    holdfast: Holdfast, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_and_verify(store: CheckpointStore, step: int, **options: Any) -> StepCheck:
        if step == 4:
            shutil.rmtree(store.directory / "step-000000000004")
        return verify_step(store, step, **options)

    monkeypatch.setattr("holdfast.runtime.commands.checkpoints.verify_step", remove_and_verify)

    code, out, _ = holdfast("verify", run_dir)

    assert code == 0
    assert out.splitlines()[1] == "step 4: removed meanwhile"


@pytest.fixture
def mirror(run_dir: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run_dir, tmp_path / "mirror")


def _files(run_dir: Path, step: int) -> list[Path]:
    return sorted((run_dir / f"checkpoints/step-{step:012d}").iterdir())


def test_what_is_missing_on_both_sides_is_exit_1(
    holdfast: Holdfast, run_dir: Path, mirror: Path
) -> None:
    for side in (run_dir, mirror):
        _files(side, 6)[1].unlink()
    _flip(_files(run_dir, 4)[2])

    code, out, _ = holdfast("repair", run_dir, "--from", mirror)

    newest, older = out.splitlines()
    assert code == 1
    assert newest.startswith("step 6: not mended: ")
    assert f"step-000000000006 has {_files(mirror, 4)[1].name} whole" in newest
    assert older.startswith("step 4: mended and verified")


def test_step_that_is_lost_altogether_comes_back(
    holdfast: Holdfast, run_dir: Path, mirror: Path
) -> None:
    shutil.rmtree(run_dir / "checkpoints")

    assert holdfast("repair", run_dir, "--from", mirror, "--step", 6)[0] == 0
    assert holdfast("verify", run_dir)[0] == 0


def test_run_that_a_job_owns_is_left_to_it(holdfast: Holdfast, run_dir: Path, mirror: Path) -> None:
    lease = RunDirectory(run_dir).acquire_lease()
    try:
        code, _, err = holdfast("repair", run_dir, "--from", mirror)
    finally:
        lease.release()

    assert code == 76
    assert "belongs to another job" in err


Fail = Callable[[str, int], None]

NUMBERS = sorted(TRANSIENT)


def _name(number: int) -> str:
    return errno.errorcode[number]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Let each opening of a checkpoint's file fail whose path has a word in it."""
    plain, listing = FileSystem.open_read, FileSystem.list

    def strike(word: str, number: int) -> None:
        def check(path: Path) -> None:
            if word in str(path):
                raise OSError(number, os.strerror(number))

        def open_read(files: FileSystem, path: Path) -> int:
            check(path)
            return plain(files, path)

        def names(files: FileSystem, path: Path) -> Any:
            check(path)
            return listing(files, path)

        monkeypatch.setattr(FileSystem, "open_read", open_read)
        monkeypatch.setattr(FileSystem, "list", names)

    return strike


@pytest.mark.parametrize(
    ("place", "request_", "words"),
    [
        *(
            ("step-000000000006/shard", *row)
            for row in (
                ("verify run", "step 6: could not be read, and is not known to be damaged: cannot"),
                ("verify run", "step 4: valid"),
                ("export run --to w.npz", "error: checkpoint step 6 could not be read: "),
            )
        ),
        ("step-000000000006", "inspect run", "error: checkpoint step 6 could not be read: "),
        ("step-000000000006", "inspect run --step 4 --json", '"damage": null,\n      "unread": "'),
        *(("checkpoints", f"{command} run", "cannot list") for command in ("verify", "inspect")),
    ],
)
@pytest.mark.parametrize("number", NUMBERS, ids=_name)
def test_step_that_cannot_be_read_just_now_is_not_called_damaged(
    holdfast: Holdfast,
    run_dir: Path,
    fail: Fail,
    monkeypatch: pytest.MonkeyPatch,
    *,
    place: str,
    request_: str,
    words: str,
    number: int,
) -> None:
    monkeypatch.chdir(run_dir.parent)
    fail(place, number)

    code, out, err = holdfast(*request_.split())

    assert code == (os.EX_OK if "--step" in request_ else os.EX_TEMPFAIL)
    assert words in out + err
    assert f"({_name(number)})" in out + err
    assert "damaged" not in (out + err).replace("not known to be damaged", "")
    assert "use an older step" not in err
    assert os.listdir() == ["run"]


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
@pytest.mark.parametrize("command", ["verify", "inspect", "report", "status"])
def test_record_or_journal_that_cannot_be_read_just_now_is_no_usage(
    holdfast: Holdfast,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    number: int,
) -> None:
    def fail(folder: int, path: Path, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files_module, "_open_name", fail)

    code, _, err = holdfast(command, run_dir)

    assert code == os.EX_TEMPFAIL
    assert "nothing is known to be damaged" in err
    assert f"({_name(number)})" in err
