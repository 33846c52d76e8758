from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import open_or_create_record
from holdfast.runtime.run.run_directory import RunDirectory


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    return JobOptions(Path("train.py"), tmp_path)


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

    second, is_resumed = open_or_create_record(directory, options, None)

    assert is_resumed
    assert second == first
    other = dataclasses.replace(options, seed=first.seed + 1)
    with pytest.raises(UsageError, match="was begun with seed"):
        open_or_create_record(directory, other, None)


def test_record_has_the_digest_of_the_script_that_begins_the_run(
    options: JobOptions, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("one()")
    options = dataclasses.replace(options, script=script)
    directory = RunDirectory(options.run_dir)
    open_or_create_record(directory, options, None)

    script.write_text("two()")
    record, _ = open_or_create_record(directory, options, None)

    assert record.script_sha256 == hashlib.sha256(b"one()").hexdigest()
