"""``holdfast logs``: what workers have printed, in a terminal or a pipe."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.recovery.world import WorkerId
from holdfast.runtime.commands.main import main
from holdfast.runtime.head.living_job import Life
from holdfast.runtime.run.run_directory import Ownership, RunDirectory
from holdfast.runtime.run.worker_logs import LogText, WorkerLogs


@pytest.fixture
def written(tmp_path: Path) -> WorkerLogs:
    files = WorkerLogs(RunDirectory(tmp_path).logs_path, Ownership(tmp_path, "r"), print)
    files.write(LogText(WorkerId(0), "", "zero \xc3\xbc\n"))
    files.write(LogText(WorkerId(2), "b", "two\n"))
    return files


def shown(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], *options: str) -> bytes:
    with pytest.raises(SystemExit) as ended:
        main(["logs", str(tmp_path), *options])
    assert ended.value.code in (0, 2)
    out, err = capsysbinary.readouterr()
    return out + err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "[w0] zero ü\n[w2 b] two\n"),
        (("-w", "2"), "two\n"),
        (
            ("--worker", "1"),
            "holdfast: error: worker 1 has printed nothing in {}; these have: 0, 2\n",
        ),
    ],
)
def test_lines_of_all_or_of_one(
    tmp_path: Path,
    written: WorkerLogs,
    capsysbinary: pytest.CaptureFixture[bytes],
    options: tuple[str, ...],
    expected: str,
) -> None:
    assert shown(tmp_path, capsysbinary, *options).decode() == expected.format(tmp_path)


def test_following_ends_with_the_job_and_shows_its_last_lines(
    tmp_path: Path,
    written: WorkerLogs,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = [Life.RUNNING, Life.DETACHED, Life.ENDED]

    def life(_: RunDirectory) -> Life:
        written.write(LogText(WorkerId(2), "b", f"{len(lives)}\n"))
        return lives.pop(0)

    monkeypatch.setattr("holdfast.runtime.commands.logs.life_of", life)
    monkeypatch.setattr(time, "sleep", lambda _: None)

    assert shown(tmp_path, capsysbinary, "-f", "-w", "2") == b"two\n3\n2\n1\n"
