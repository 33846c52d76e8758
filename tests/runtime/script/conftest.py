"""Processes of a run whose script is the module of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.script.overlay import act_by
from holdfast.runtime.script.process import ScriptProcess


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """The run directory."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    return run_dir


@pytest.fixture
def begin(
    run_dir: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ScriptProcess]]:
    """Begins a process of the run, by its launch, in the place of the one before."""
    monkeypatch.setattr("time.strftime", __import__("time").strftime)
    monkeypatch.setattr("holdfast.runtime.script.calls._sharing", None)
    count = 0

    def begin(launch: int = 1, since: float = 0.0) -> ScriptProcess:
        nonlocal count
        count += 1
        scratch = run_dir / f"private-{count}"
        scratch.mkdir()
        record = ScriptRecord(run_dir / "script.jsonl")
        process = ScriptProcess(
            request.path, record, run_dir, lambda: scratch, since, lambda: str(launch)
        )
        process.share()
        return process

    yield begin
    act_by({})
