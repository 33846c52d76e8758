"""What the tests of saves share: the agent's side, the writer's, and disks."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_saves import Workers, plan_of
from host_writer import Disk, Head, RunningWriter
from process_agent import AgentOfProcess

from holdfast.checkpoint.filesystem import FileSystem


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
def head(writer: RunningWriter) -> Head:
    return Head(writer)


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
