"""What the tests of saves share: the agent's side, the writer's, and disks."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from host_saves import Workers, plan_of
from host_writer import Disk, RunningWriter
from process_agent import AgentOfProcess

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord


@pytest.fixture
def writer() -> Iterator[RunningWriter]:
    writer = RunningWriter()
    yield writer
    writer.close()


@pytest.fixture
def workers(tmp_path: Path, writer: RunningWriter) -> Iterator[Workers]:
    """Return workers whose memory and plan the writer knows."""
    workers = Workers(plan_of(tmp_path))
    writer.use(workers)
    yield workers
    workers.close()


@pytest.fixture
def another_run() -> Callable[[Path], None]:
    """Return what gives a directory to another run."""

    def take(directory: Path) -> None:
        RunDirectory(directory).record_path.unlink()
        RunDirectory(directory).create_record(RunRecord("other", FORMAT, 0.0, 1, 0, 1))

    return take


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Return a disk that takes no new file while it is full."""
    found = Disk()
    plain = FileSystem.create_exclusive

    def create(files: FileSystem, path: Path) -> int:
        if found.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        return plain(files, path)

    monkeypatch.setattr(FileSystem, "create_exclusive", create)
    return found


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentOfProcess]:
    agent = AgentOfProcess(tmp_path)
    yield agent
    agent.close()
