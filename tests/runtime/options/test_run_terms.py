"""What a run fixes for good, and what another job of it may still wish."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from pathlib import Path

import pytest

from holdfast.checkpoint.signature import KeyFile
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import open_or_create_record, script_sha256
from holdfast.runtime.run.journal import Journal
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
        journal.record("step", step=1)


def test_checkpoints_without_the_record_of_their_run_are_not_given_to_a_new_one(
    options: JobOptions,
) -> None:
    directory = RunDirectory(options.run_dir)
    step = directory.checkpoints_path / "step-000000000040"
    step.mkdir(parents=True)

    with pytest.raises(UsageError, match=r"holds checkpoints but no RUN\.json.*--fresh"):
        open_or_create_record(directory, options, None)

    assert step.is_dir()
    assert directory.load_record() is None
    directory.set_aside()
    record, is_resumed = open_or_create_record(directory, options, None)
    assert not is_resumed
    assert directory.load_record() == record


def test_what_a_save_has_left_over_is_no_checkpoint(options: JobOptions) -> None:
    directory = RunDirectory(options.run_dir)
    (directory.checkpoints_path / ".tmp-000000000040-g1-a1").mkdir(parents=True)

    _, is_resumed = open_or_create_record(directory, options, None)

    assert not is_resumed


def test_second_job_gets_the_record_of_the_first(options: JobOptions) -> None:
    directory = RunDirectory(options.run_dir)
    first, _ = open_or_create_record(directory, options, None)
    _train(options)

    second, is_resumed = open_or_create_record(directory, options, None)

    assert is_resumed
    assert second == first
    other = dataclasses.replace(options, seed=first.seed + 1)
    with pytest.raises(UsageError, match="was begun with seed"):
        open_or_create_record(directory, other, None)


def test_record_has_digest_and_arguments_of_the_script_that_begins_the_run(
    options: JobOptions, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("one()")
    options = dataclasses.replace(options, script=script, argv=("--rate", "0.1"))
    directory = RunDirectory(options.run_dir)
    open_or_create_record(directory, options, None)
    _train(options)

    script.write_text("two()")
    options = dataclasses.replace(options, argv=())
    record, _ = open_or_create_record(directory, options, None)

    assert record.script_sha256 == hashlib.sha256(b"one()").hexdigest()
    assert record.argv == ["--rate", "0.1"]


def test_run_without_a_step_takes_script_and_options_as_they_are(
    options: JobOptions, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise ValueError()")
    options = dataclasses.replace(options, script=script, argv=("--rate", "0.1"), microbatches=2)
    directory = RunDirectory(options.run_dir)
    first = _began(options)

    script.write_text("train()")
    second = _began(dataclasses.replace(options, argv=(), microbatches=6, seed=3))

    assert directory.load_record() == second
    assert second.script_sha256 == hashlib.sha256(b"train()").hexdigest()
    assert (second.argv, second.microbatches, second.seed) == ([], 6, 3)
    assert (second.run_id, second.draw_seed) == (first.run_id, first.draw_seed)
    _train(options)
    assert _began(dataclasses.replace(options, microbatches=6)) == second


def _began(options: JobOptions) -> RunRecord:
    return open_or_create_record(RunDirectory(options.run_dir), options, None)[0]


def test_new_run_has_the_terms_that_were_asked_for(options: JobOptions) -> None:
    asked = dataclasses.replace(options, workers=3, microbatches=6, seed=7, threads=2)

    record = _began(asked)

    assert (record.microbatches, record.seed, record.threads) == (6, 7, 2)
    assert record.numerics["threads"] == 2
    assert record.key_id is None


def test_script_that_cannot_be_read_has_no_digest(tmp_path: Path) -> None:
    assert script_sha256(tmp_path / "gone.py") is None
    assert script_sha256(tmp_path) is None


@pytest.mark.parametrize(("name", "flag"), [("microbatches", "--microbatches"), ("seed", "--seed")])
def test_term_that_fixes_the_bytes_cannot_be_another_one(
    options: JobOptions, name: str, flag: str
) -> None:
    _began(dataclasses.replace(options, microbatches=4, seed=4))
    _train(options)

    with pytest.raises(UsageError, match=f"was begun with {name} 4, not 5; .*{flag}.*--fresh"):
        _began(dataclasses.replace(options, **{name: 5}))  # type: ignore[arg-type]

    _began(dataclasses.replace(options, **{name: 4}))  # type: ignore[arg-type]


def test_threads_are_those_of_the_job_and_stay_those_of_the_run_if_none_are_given(
    options: JobOptions,
) -> None:
    began = _began(dataclasses.replace(options, threads=2))
    _train(options)

    assert _began(options).threads == 2
    assert _began(dataclasses.replace(options, threads=5)) == dataclasses.replace(began, threads=5)
    assert _began(options).threads == 2


def test_strict_job_is_refused_if_it_would_compute_in_another_way(options: JobOptions) -> None:
    _began(dataclasses.replace(options, threads=2))
    _train(options)
    strict = dataclasses.replace(options, strict=True)

    assert _began(strict).threads == 2
    with pytest.raises(UsageError, match=r"threads is 1, but the run began with 2.*--strict"):
        _began(dataclasses.replace(strict, threads=1))


def test_strict_job_is_refused_if_nobody_knows_how_the_run_began(options: JobOptions) -> None:
    record = dataclasses.replace(_began(options), numerics={"threads": 1})
    directory = RunDirectory(options.run_dir)
    directory.record_path.write_bytes(record.encode())
    _train(options)

    assert _began(options).numerics == {"threads": 1}
    with pytest.raises(UsageError, match=r"the numerics of the run in .* have changed: .* missing"):
        _began(dataclasses.replace(options, strict=True))


def test_run_keeps_the_key_that_it_was_begun_with(options: JobOptions) -> None:
    directory = RunDirectory(options.run_dir)
    key = KeyFile(Path("/keys/1"), "00112233aabbccdd")
    record, _ = open_or_create_record(directory, options, key)

    assert record.key_id == key.key_id
    assert open_or_create_record(directory, options, key) == (record, True)
    with pytest.raises(UsageError, match="was begun with key 00112233aabbccdd; give it with"):
        open_or_create_record(directory, options, None)
