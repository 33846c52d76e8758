"""What is checked before a process of the job is started."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.supervisor.job_setup import check_files, job_environment


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    script = tmp_path / "train.py"
    script.write_text("")
    return JobOptions(script, tmp_path / "run")


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("/nowhere/train.py", "script /nowhere/train.py does not exist"),
        ("/tmp", "script /tmp is not a readable file"),
    ],
)
def test_script_that_cannot_be_read_is_refused(
    options: JobOptions, script: str, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        check_files(dataclasses.replace(options, script=Path(script)))


def test_run_is_not_mended_from_itself(options: JobOptions, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(options.run_dir)

    with pytest.raises(UsageError, match=r"--repair-from .*/alias is the run itself; give another"):
        check_files(dataclasses.replace(options, repair_from=tmp_path / "alias"))


def test_mirror_that_is_a_link_to_itself_fails_nothing(options: JobOptions, tmp_path: Path) -> None:
    """A mirror matters only once a checkpoint is to be mended."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    check_files(dataclasses.replace(options, repair_from=tmp_path / "loop"))


def test_first_weights_that_are_not_there_are_refused_before_anything_starts(
    options: JobOptions, tmp_path: Path
) -> None:
    lost = dataclasses.replace(options, initial=tmp_path / "nosuch.npz")

    with pytest.raises(UsageError, match=r"--initial .*/nosuch\.npz does not exist; begin with"):
        check_files(lost)

    (tmp_path / "prefix.index").touch()  # of a TensorFlow checkpoint
    check_files(dataclasses.replace(options, initial=tmp_path / "prefix"))
    options.run_dir.mkdir()
    (options.run_dir / "RUN.json").touch()  # a run that resumes does not look at them
    check_files(lost)


def test_environment_of_a_job_is_that_outside_of_any_mpi_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enclosing = {"PMIX_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "PRTE_LAUNCHED": "1"}
    settings = {"OMPI_MCA_btl_tcp_if_include": "ib0", "PMIX_MCA_gds": "hash"}
    for name, value in (enclosing | settings).items():
        monkeypatch.setenv(name, value)

    environment = job_environment(threads=2)

    assert not enclosing.keys() & environment.keys()
    assert settings.items() <= environment.items()
    assert environment["OMP_NUM_THREADS"] == "2"
