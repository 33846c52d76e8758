"""What a run fixes for good, and what another job of it may still wish."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.recovery.event import WorkerCompleted
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options import run_terms
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import (
    complete_run,
    elsewhere,
    open_or_create_record,
    refuse_other_program,
    script_terms,
)
from holdfast.runtime.run.events import JobEnded, JobStarted, Step
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.program import Program
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    return JobOptions(Path("train.py"), tmp_path)


def _train(options: JobOptions) -> None:
    """Let the run have trained a step."""
    directory = RunDirectory(options.run_dir)
    record = directory.load_record()
    assert record is not None
    path, run_id = directory.journal_path, record.run_id
    with contextlib.closing(Journal(path, run_id=run_id, source="worker 0")) as journal:
        journal.record(Step(1, 1, 0.1, 8, 1))


def test_checkpoints_without_the_record_of_their_run_are_not_given_to_a_new_one(
    options: JobOptions,
) -> None:
    directory = RunDirectory(options.run_dir)
    step = directory.checkpoints_path / "step-000000000040"
    step.mkdir(parents=True)

    with pytest.raises(UsageError, match=r"holds checkpoints but no RUN\.json.*--fresh"):
        open_or_create_record(directory, options, Program.of(options.script))

    assert step.is_dir()
    assert directory.load_record() is None
    directory.set_aside()
    record, is_resumed = open_or_create_record(directory, options, Program.of(options.script))
    assert not is_resumed
    assert directory.load_record() == record


def test_what_a_save_has_left_over_is_no_checkpoint(options: JobOptions) -> None:
    directory = RunDirectory(options.run_dir)
    (directory.checkpoints_path / ".tmp-000000000040-g1-a1").mkdir(parents=True)

    _, is_resumed = open_or_create_record(directory, options, Program.of(options.script))

    assert not is_resumed


def _refuse(options: JobOptions, **terms: bool) -> None:
    refuse_other_program(options, Program.of(options.script), **terms)


def _complete(options: JobOptions) -> str | None:
    return complete_run(options, Program.of(options.script))


def _began(options: JobOptions) -> RunRecord:
    return open_or_create_record(
        RunDirectory(options.run_dir), options, Program.of(options.script)
    )[0]


def _begin(options: JobOptions) -> None:
    """Begin the run, and train a step."""
    _began(options)
    _train(options)


ONE, TWO = (hashlib.sha256(text).hexdigest() for text in (b"one()", b"two()"))
RATE = ("--rate", "0.1")


@pytest.mark.parametrize(
    ("begun", "is_trained", "asked", "result"),
    [
        # What fixes the bytes cannot be another one.
        ({"seed": 4}, True, {"seed": 5}, "was begun with seed 4, not 5; .*--seed.*--fresh"),
        ({"seed": 4}, True, {"seed": 5, "strict": True}, "was begun with seed 4, not 5"),
        ({"seed": 4}, True, {"seed": 4, "strict": True}, {"seed": 4}),
        (
            {"microbatches": 4},
            True,
            {"microbatches": 5, "strict": True},
            "was begun with microbatches 4, not 5; .*--microbatches.*--fresh",
        ),
        # Microbatches that a resume asks for are the run's from then on; threads are the job's.
        ({"microbatches": 4}, True, {"workers": 8}, {"microbatches": 4}),
        *[
            (
                {"microbatches": 4, "threads": 2},
                True,
                {"microbatches": parts, "threads": 3},
                {"microbatches": parts, "threads": 3},
            )
            for parts in (1, 8)
        ],
        ({"threads": 2}, True, {}, {"threads": 2}),
        ({"threads": 2}, True, {"strict": True}, {"threads": 2}),
        (
            {"threads": 2},
            True,
            {"strict": True, "threads": 1},
            "threads is 1, but the run began with 2.*--strict",
        ),
        # The script and its arguments are those that have begun the run, once a step is trained.
        ({"argv": RATE}, True, {}, {"argv": list(RATE), "script_sha256": ONE}),
        (
            {"argv": RATE, "microbatches": 2},
            False,
            {"microbatches": 6, "seed": 3},
            {"argv": [], "microbatches": 6, "seed": 3, "script_sha256": TWO},
        ),
    ],
)
def test_job_goes_on_with_the_terms_of_its_run(
    options: JobOptions,
    tmp_path: Path,
    begun: dict[str, Any],
    asked: dict[str, Any],
    result: dict[str, Any] | str,
    *,
    is_trained: bool,
) -> None:
    options = dataclasses.replace(options, script=tmp_path / "train.py")
    options.script.write_text("one()")
    first = _began(dataclasses.replace(options, **begun))
    if is_trained:
        _train(options)
    options.script.write_text("two()")

    if isinstance(result, str):
        with pytest.raises(UsageError, match=result):
            _began(dataclasses.replace(options, **asked))
        assert RunDirectory(options.run_dir).load_record() == first
        return
    second = _began(dataclasses.replace(options, **asked))
    kept = RunDirectory(options.run_dir).load_record()

    changed = result if is_trained else dataclasses.asdict(second) | result
    assert second == dataclasses.replace(first, **changed)
    assert (second.run_id, second.draw_seed) == (first.run_id, first.draw_seed)
    assert kept == (dataclasses.replace(second, threads=first.threads) if is_trained else second)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (4, 1), (9, 2), (64, 16)])
def test_new_run_divides_the_cores_among_the_workers(
    options: JobOptions, monkeypatch: pytest.MonkeyPatch, cores: int, threads: int
) -> None:
    monkeypatch.setattr(run_terms, "usable_cores", lambda: cores)

    assert _began(dataclasses.replace(options, workers=4)).threads == threads


def test_strict_job_is_refused_if_nobody_knows_how_the_run_began(options: JobOptions) -> None:
    record = dataclasses.replace(_began(options), numerics={"threads": 1})
    directory = RunDirectory(options.run_dir)
    directory.record_path.write_bytes(record.encode())
    _train(options)

    assert _began(options).numerics == {"threads": 1}
    with pytest.raises(UsageError, match=r"the numerics of the run in .* have changed: .* missing"):
        _began(dataclasses.replace(options, strict=True))


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Be outside of any job array, and change that."""
    for name in ("SLURM_ARRAY_TASK_ID", "PBS_ARRAY_INDEX", "PBS_ARRAYID", "HOLDFAST_CHAIN"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def experiment(folder: Path, *, run_dir: str = "../holdfast-train") -> JobOptions:
    """Return a job of the script in a folder, whose run directory is beside the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(f"train({folder.name!r})")
    directory = Path(os.path.normpath(folder / run_dir))
    directory.mkdir(exist_ok=True)
    return JobOptions(folder / "train.py", directory)


def test_run_of_another_script_of_the_same_name_is_refused(
    tmp_path: Path, outside: pytest.MonkeyPatch
) -> None:
    first, second = experiment(tmp_path / "exp1"), experiment(tmp_path / "exp2")
    _began(first)
    _refuse(second)  # nothing is trained that it could take over
    with pytest.raises(UsageError, match="holds the run of"):
        _refuse(second, is_owned=True)
    _train(first)

    outside.chdir(tmp_path)
    for refuse in (_refuse, _began):
        with pytest.raises(UsageError) as refused:
            refuse(second)
        assert str(refused.value) == (
            f"{first.run_dir} holds the run of {first.script}: give {second.script} a run "
            "directory of its own by --run-dir, or set that run aside by --fresh"
        )
    _refuse(dataclasses.replace(second, fresh=True))
    _refuse(first)


def test_script_that_was_moved_with_its_run_directory_or_with_its_text_goes_on(
    tmp_path: Path, outside: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    options = experiment(tmp_path / "here" / "exp1")
    _begin(options)

    (tmp_path / "here").rename(tmp_path / "there")
    moved = experiment(tmp_path / "there" / "exp1")
    moved.script.write_text("train('anything')")
    _refuse(moved)

    experiment(tmp_path / "there" / "exp1")
    (tmp_path / "job7").mkdir()
    alone = moved.script.rename(tmp_path / "job7" / "train.py")
    _refuse(dataclasses.replace(moved, script=alone))
    alone.write_text("train('anything')")
    _goes_on_as_the_refusal_says(dataclasses.replace(moved, script=alone))


def _goes_on_as_the_refusal_says(options: JobOptions) -> None:
    with pytest.raises(UsageError) as refused:
        _refuse(options)
    command = str(refused.value).split("`")[1]
    assert command.startswith("mkdir -p ")
    subprocess.run(command, shell=True, check=True)
    _refuse(options)


def test_script_of_another_release_goes_on_in_a_run_directory_that_is_named(
    tmp_path: Path, outside: pytest.MonkeyPatch
) -> None:
    outside.chdir(tmp_path)
    first, second = (experiment(tmp_path / day, run_dir="../run") for day in ("old", "new one"))
    second.script.write_text(first.script.read_text())
    _begin(first)

    _refuse(second)
    record = _began(second)
    assert elsewhere(record, second) == str(first.script)
    assert elsewhere(record, first) == ""

    second.script.write_text("train('with another text')")
    text = first.script.read_text()
    _goes_on_as_the_refusal_says(second)
    assert Path(f"{first.script}~").read_text() == text


def test_default_run_directory_is_not_shared_by_scripts_of_one_text(
    tmp_path: Path, outside: pytest.MonkeyPatch
) -> None:
    outside.chdir(tmp_path)
    first, second = experiment(tmp_path / "exp1"), experiment(tmp_path / "exp2")
    second.script.write_text(first.script.read_text())
    _begin(first)

    with pytest.raises(UsageError, match=r"set that run aside by --fresh$"):
        _refuse(second)


def test_link_to_a_script_is_that_script(tmp_path: Path, outside: pytest.MonkeyPatch) -> None:
    options = experiment(tmp_path / "exp1")
    _begin(options)

    (tmp_path / "latest").symlink_to("exp1")
    _refuse(dataclasses.replace(options, script=tmp_path / "latest" / "train.py"))

    other = experiment(tmp_path / "exp2")
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").symlink_to("exp2")
    with pytest.raises(UsageError, match=f"give {other.script} a run directory of its own"):
        _refuse(dataclasses.replace(options, script=tmp_path / "latest" / "train.py"))


TASK = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "55"}
OTHER_TASK = TASK | {"SLURM_ARRAY_TASK_ID": "4"}


@pytest.mark.parametrize(
    ("begun_by", "asked_by", "refusal"),
    [
        (TASK, TASK, None),
        (TASK, TASK | {"SLURM_ARRAY_JOB_ID": "99"}, None),
        (TASK, {}, None),
        (TASK, OTHER_TASK | {"HOLDFAST_CHAIN": "a"}, None),
        (TASK, OTHER_TASK, "the run of task 3, and this is task 4 of Slurm array 55: give each"),
        ({}, TASK, "the run of a job outside of arrays, and this is task 3 of Slurm array 55"),
        (
            {"PBS_ARRAY_INDEX": "1", "PBS_JOBID": "7[1].head"},
            {"PBS_ARRAY_INDEX": "2", "PBS_JOBID": "7[2].head"},
            "task 2 of PBS array 7[2].head: give each task a run directory of its own, as by "
            "`--run-dir run-$PBS_ARRAY_INDEX`",
        ),
    ],
    ids=["requeued", "submitted again", "by hand", "chain", "another", "by hand first", "PBS"],
)
def test_run_belongs_to_one_task_of_a_job_array(
    tmp_path: Path,
    outside: pytest.MonkeyPatch,
    begun_by: dict[str, str],
    asked_by: dict[str, str],
    refusal: str | None,
) -> None:
    outside.chdir(tmp_path)
    options = experiment(tmp_path / "exp1")
    for name, value in begun_by.items():
        outside.setenv(name, value)
    _begin(options)

    for name in begun_by:
        outside.delenv(name)
    for name, value in asked_by.items():
        outside.setenv(name, value)

    if refusal is None:
        _refuse(options)
    else:
        with pytest.raises(UsageError) as refused:
            _refuse(options)
        assert f"{options.run_dir} holds the run of " in str(refused.value)
        assert refusal in str(refused.value)


def test_task_with_a_directory_of_its_own_goes_on_under_another_index_as_the_refusal_says(
    tmp_path: Path, outside: pytest.MonkeyPatch
) -> None:
    outside.chdir(tmp_path)
    options = experiment(tmp_path / "exp1", run_dir="../run-3")
    for name, value in TASK.items():
        outside.setenv(name, value)
    _begin(options)
    outside.setenv("SLURM_ARRAY_TASK_ID", "0")

    with pytest.raises(
        UsageError,
        match="55: `export HOLDFAST_CHAIN=NAME` goes on with it under this index; another",
    ):
        _refuse(options)
    outside.setenv("HOLDFAST_CHAIN", "NAME")
    _refuse(options)


def completed(options: JobOptions, exit_code: int = 0) -> JobOptions:
    """Write down a run that has completed step 9; return its job."""
    run = _began(options)
    (options.run_dir / "checkpoints" / "step-000000000009").mkdir(parents=True)
    with contextlib.closing(
        Journal(options.run_dir / "journal.jsonl", run_id=run.run_id, source="head")
    ) as journal:
        terms = script_terms(options, Program.of(options.script))
        journal.record(JobStarted(2, None, None, None, None, None, None, terms=terms))
        journal.record(WorkerCompleted(WorkerId(0), 9, "ab12", epochs=1))
        journal.record(JobEnded(exit_code=exit_code, reason="completed step 9"))
    return dataclasses.replace(options, seed=run.seed, microbatches=run.microbatches)


def test_complete_run_has_nothing_to_do(tmp_path: Path) -> None:
    options = completed(experiment(tmp_path / "exp1"))

    assert _complete(dataclasses.replace(options, workers=4, save_every="50")) == (
        f"nothing to do: the run in {options.run_dir} has completed step 9, state sha256 ab12, and "
        "train.py, its modules, arguments and options are the same (--again runs it; --fresh "
        "trains anew, as on other data)"
    )


@pytest.mark.parametrize(
    "asked",
    [
        *({"argv": ("--epochs", "9")}, {"fit": False}, {"fresh": True}, {"again": True}),
        *({"seed": 2}, {"microbatches": 8}, {"strict": True}),
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_complete_run_that_is_asked_for_otherwise_runs(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    options = completed(experiment(tmp_path / "exp1"))

    assert _complete(dataclasses.replace(options, **asked)) is None


def test_run_is_not_complete_with_another_text_or_without_its_last_step(tmp_path: Path) -> None:
    options = completed(experiment(tmp_path / "exp1"))
    text = options.script.read_bytes()
    options.script.write_bytes(text + b"\n")
    assert _complete(options) is None

    options.script.write_bytes(text)
    assert _complete(options) is not None
    (options.run_dir / "checkpoints" / "step-000000000009").rmdir()
    assert _complete(options) is None


def test_run_that_has_not_ended_well_is_not_complete(tmp_path: Path) -> None:
    assert _complete(experiment(tmp_path / "exp1")) is None
    assert _complete(completed(experiment(tmp_path / "exp2", run_dir="run"), 75)) is None
