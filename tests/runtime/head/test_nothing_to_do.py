"""When a complete run is not started again, and each change for which it is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.head.nothing_to_do import nothing_to_do
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

    sentence = nothing_to_do(dataclasses.replace(options, workers=4, save_every="50"))

    assert sentence is not None
    assert sentence == (
        f"nothing to do: the run in {options.run_dir} has completed step 9, state sha256 ab12; "
        "train.py, its arguments and what it has read are unchanged (--again runs it, --fresh "
        "trains anew)"
    )


def _touch(path: Path) -> None:
    path.write_text("as it WAS")  # of the same size
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: _touch(folder / "train.py"),
        lambda folder: _touch(folder / "data.npy"),
        lambda folder: (folder / "data.npy").unlink(),
        lambda folder: (folder / "model.h5").unlink(),
        lambda folder: (folder / "model.h5").write_text("torn"),
        lambda folder: (folder / "run/checkpoints/step-000000000009").rmdir(),
        lambda folder: (folder / "run/journal.jsonl").unlink(),
        lambda folder: os.chdir("/"),
    ],
    ids=["script", "data", "data gone", "output gone", "output cut", "step", "journal", "folder"],
)
def test_run_with_a_change_is_started(
    options: JobOptions, change: Callable[[Path], object]
) -> None:
    complete(options)
    change(options.script.parent)

    assert nothing_to_do(options) is None


@pytest.mark.parametrize(
    "asked",
    [
        *({"argv": ("--epochs", "9")}, {"fresh": True}, {"again": True}, {"fit": False}),
        *({"seed": 2}, {"microbatches": 8}, {"strict": True}, {"repair_from": Path("mirror")}),
    ],
    ids=[
        *("arguments", "fresh", "again", "another option"),
        *("seed", "microbatches", "strict", "mirror"),
    ],
)
def test_run_that_is_asked_for_otherwise_is_started(
    options: JobOptions, asked: dict[str, object]
) -> None:
    complete(options)
    RunDirectory(options.run_dir).create_record(RECORD)
    same = dataclasses.replace(options, seed=RECORD.seed, microbatches=RECORD.microbatches)
    assert nothing_to_do(same) is not None

    assert nothing_to_do(dataclasses.replace(options, **asked)) is None


def test_link_that_leads_elsewhere_now_is_a_change(options: JobOptions) -> None:
    folder = options.script.parent
    (folder / "v1").write_text("data")
    (folder / "data.npy").unlink()
    (folder / "data.npy").symlink_to("v1")
    complete(options)
    assert nothing_to_do(options) is not None

    (folder / "v2").write_text("data")
    (folder / "new").symlink_to("v2")
    (folder / "new").replace(folder / "data.npy")

    assert nothing_to_do(options) is None


@pytest.mark.parametrize("ended", [{"exit_code": 75}, {"unsure": "train.py names environ"}])
def test_run_that_is_not_surely_complete_is_started(
    options: JobOptions, ended: dict[str, object]
) -> None:
    complete(options, **ended)  # type: ignore[arg-type]

    assert nothing_to_do(options) is None


def test_new_run_is_started(options: JobOptions) -> None:
    assert nothing_to_do(options) is None
