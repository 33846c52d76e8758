"""The traces of a job are found by its mark, and nothing of another job is touched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import testing
from holdfast.runtime.system.owned_directory import make_owned_directory
from holdfast.testing import JobTraces

VARIABLE = "HOLDFAST_TEST_TRACES"

DEAD, OTHER = 2**22 + 1, 2**22 + 11
"""Numbers that no process has: the kernel's largest is 2**22."""


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobTraces]:
    """Traces of a job whose shared memory is a folder of its own."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(testing, "SHARED_MEMORY", tmp_path / "shm")
    made = JobTraces(VARIABLE)
    yield made
    made.remove(())


def _segment(folder: Path, name: str) -> Path:
    directory = folder / "shm" / name
    directory.mkdir()
    (directory / "segment").write_bytes(b"some memory")
    return directory


def test_memory_that_a_living_process_holds_is_not_called_left(
    traces: JobTraces, tmp_path: Path
) -> None:
    """A living client of another job may have got the number of a dead one."""
    held = make_owned_directory(str(tmp_path / "shm"))
    traces.temporary.rmdir()  # by the job, which is no leftover either

    assert traces.leftovers([DEAD]) == traces.leftovers([os.getpid()]) == ()
    traces.remove([os.getpid()])
    assert held.is_dir()


def test_files_of_the_job_are_named_and_removed_and_those_of_other_jobs_stay(
    traces: JobTraces, tmp_path: Path
) -> None:
    memory = _segment(tmp_path, f"holdfast-{DEAD}-abcdefgh")
    others = _segment(tmp_path, f"holdfast-{OTHER}-abcdefgh")
    _segment(tmp_path, f"holdfast-{DEAD}1-abcdefgh")
    (traces.temporary / "forgotten.txt").touch()
    left = traces.leftovers([DEAD, DEAD])

    traces.remove([DEAD])

    assert left == (str(memory), str(traces.temporary / "forgotten.txt"))

    assert not traces.scratch.exists()
    assert not memory.exists()
    assert (others / "segment").exists()
