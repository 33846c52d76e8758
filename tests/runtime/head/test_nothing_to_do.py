"""When a complete run is not started again, and each change for which it is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.head.nothing_to_do import CompleteRun, find_complete_run
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import script_terms
from holdfast.runtime.run.entries import record
from holdfast.runtime.run.events import Completed, JobEnded, ScriptEnded
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.run.stamps import stamp_of

RECORD = RunRecord("r1", FORMAT, 1.5, microbatches=2, seed=0, threads=1)


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobOptions:
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "data.npy", "model.h5"):
        (tmp_path / name).write_text("as it was")
    return JobOptions(script=tmp_path / "train.py", run_dir=tmp_path / "run", workers=2)


def complete(options: JobOptions, exit_code: int = 0, unsure: str = "") -> None:
    """Write down a run that two workers have completed at step 9."""
    folder = options.script.parent
    (options.run_dir / "checkpoints" / "step-000000000009").mkdir(parents=True)
    read = tuple(f"{stamp_of(str(path))} {path}" for path in (options.script, folder / "data.npy"))
    journal = Journal(options.run_dir / "journal.jsonl", run_id="r1", source="head")
    journal.record("job_started", workers=2, script=str(options.script))
    record(journal, Completed(9, "ab12", epochs=1, metrics=None, validation=None))
    for worker in range(2):
        written = (f"9 {folder / 'model.h5'}", *((f"1 {folder}/gone",) if worker else ()))
        terms = script_terms(options, Path.cwd())
        record(journal, ScriptEnded(worker, terms, read, written, unsure if worker else ""))
    record(journal, JobEnded(exit_code=exit_code, reason="completed step 9"))
    journal.close()


def test_complete_run_is_told_and_not_started(options: JobOptions) -> None:
    complete(options)

    found = find_complete_run(dataclasses.replace(options, workers=4, save_every="50"))

    assert found is not None
    assert not found.runs_again
    assert found.sentence == (
        f"nothing to do: the run in {options.run_dir} has completed step 9, state sha256 ab12; "
        "train.py, its arguments and what it has read are unchanged (--again runs it, --fresh "
        "trains anew)"
    )


def _touch(path: Path) -> None:
    path.write_text("as it WAS")  # of the same size
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda folder: _touch(folder / "train.py"), "train.py has changed since"),
        (lambda folder: _touch(folder / "data.npy"), "data.npy has changed since"),
        (lambda folder: (folder / "data.npy").unlink(), "data.npy has changed since"),
        (
            lambda folder: (folder / "model.h5").unlink(),
            "model.h5, which it has written, is gone or shorter",
        ),
        (
            lambda folder: (folder / "model.h5").write_text("torn"),
            "model.h5, which it has written, is gone or shorter",
        ),
        (
            lambda folder: (folder / "run/checkpoints/step-000000000009").rmdir(),
            "its checkpoint of step 9 is gone",
        ),
        (
            lambda _: os.chdir("/"),
            "its path, its options or the working directory are others than before",
        ),
    ],
    ids=["script", "data", "data gone", "output gone", "output cut", "step", "folder"],
)
def test_run_with_a_change_is_started_and_the_change_is_told(
    options: JobOptions, change: Callable[[Path], object], why: str
) -> None:
    complete(options)
    change(options.script.parent)

    assert find_complete_run(options) == again(options, why)


def again(options: JobOptions, why: str) -> CompleteRun:
    sentence = f"the run in {options.run_dir} has completed step 9; train.py runs again, because "
    return CompleteRun(sentence + why, runs_again=True)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"argv": ("--epochs", "9")}, "it had no arguments before"),
        ({"fit": False}, "its path, its options or the working directory are others than before"),
        *(({"fresh": True}, None), ({"again": True}, None), ({"seed": 2}, None)),
        *(({"microbatches": 8}, None), ({"strict": True}, None)),
        ({"repair_from": Path("mirror")}, None),
    ],
    ids=[
        *("arguments", "another option", "fresh", "again"),
        *("seed", "microbatches", "strict", "mirror"),
    ],
)
def test_run_that_is_asked_for_otherwise_is_started(
    options: JobOptions, asked: dict[str, Any], why: str | None
) -> None:
    complete(options)
    RunDirectory(options.run_dir).create_record(RECORD)
    same = dataclasses.replace(options, seed=RECORD.seed, microbatches=RECORD.microbatches)
    assert is_over(same)

    found = find_complete_run(dataclasses.replace(options, **asked))

    assert found == (None if why is None else again(options, why))


def is_over(options: JobOptions) -> bool:
    found = find_complete_run(options)
    return found is not None and not found.runs_again


def test_link_that_leads_elsewhere_now_is_a_change(options: JobOptions) -> None:
    folder = options.script.parent
    (folder / "v1").write_text("data")
    (folder / "data.npy").unlink()
    (folder / "data.npy").symlink_to("v1")
    complete(options)
    assert is_over(options)

    (folder / "v2").write_text("data")
    (folder / "new").symlink_to("v2")
    (folder / "new").replace(folder / "data.npy")

    assert not is_over(options)


def test_run_that_is_not_surely_complete_is_started_and_the_doubt_is_told(
    options: JobOptions,
) -> None:
    complete(options, unsure="train.py names environ")

    assert find_complete_run(options) == again(
        options, "train.py names environ, and what it finds there may have changed"
    )


def test_run_that_is_not_complete_is_started_without_a_word(options: JobOptions) -> None:
    assert find_complete_run(options) is None
    complete(options, exit_code=75)
    assert find_complete_run(options) is None

    (options.run_dir / "journal.jsonl").unlink()
    assert find_complete_run(options) is None
