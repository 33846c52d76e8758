"""A run with two deaths and a relaunch, told as its journal tells it; no job is needed for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from journal_entries import line

from holdfast.runtime.commands.reported_run import ReportedRun
from holdfast.runtime.head.living_job import Life
from holdfast.runtime.run.entries import entry_of

DIGEST = "0123456789abcdef" * 4


def told_lines(script: str = "train.py", **started: Any) -> list[dict[str, Any]]:
    """Return a journal: 12 steps in 3 epochs on 3 workers, from second 100 to second 130."""
    repair = {"detected": 108.3, "revoked_ms": 1.0, "shrunk_ms": 5.0, "agreed_ms": 20.0}
    return [
        line("job_started", 100, workers=3, script=f"/home/ann/{script}", argv=[], **started),
        line("launch", 100.5, workers=[0, 1, 2], generation=1, relaunch=0),
        line("world", 104, workers=[0, 1, 2], step=0, generation=1),
        *_steps(1, 4, 105),
        _epoch(1, 4, 108, 0.9),
        line("failure", 108.25, worker=2, cause="signal SIGKILL", step=4, stderr=["<b>bad</b>"]),
        line("world", 108.4, workers=[0, 1], step=4, generation=2),
        line("step", 109, step=5, epoch=2, seconds=0.5, samples=8, generation=2),
        line(
            "recovery",
            109,
            generation=2,
            step=5,
            lost=[2],
            survivors=[0, 1],
            adopted_ms=30.0,
            next_step_ms=700.0,
            **repair,
        ),
        line("checkpoint", 109.6, step=5, seconds=0.25, bytes=3 << 20, generation=2),
        line("step", 110, step=6, epoch=2, seconds=0.5, samples=8, generation=2),
        line("failure", 110.5, worker=0, cause="exit 1", step=6),
        line("failure", 110.6, worker=1, cause="exit 1", step=6),
        line("relaunch", 111, reason="all workers died", spent=1, workers=[3, 4, 5]),
        line("launch", 111, workers=[3, 4, 5], generation=3, relaunch=1),
        line("restored", 116, step=5, generation=3),
        line("world", 117, workers=[3, 4, 5], step=5, generation=3),
        *_steps(6, 8, 118, generation=3),
        _epoch(2, 8, 120, 0.5),
        *_steps(9, 12, 122, generation=3),
        _epoch(3, 12, 125, float("nan")),
        line("completed", 126, step=12, epochs=3, sha256=DIGEST, metrics={"loss": 0.25}),
        line("job_ended", 130, exit_code=0, reason="completed step 12"),
    ]


def told_run(lines: list[dict[str, Any]] | None = None, path: Path = Path("/run")) -> ReportedRun:
    """Return the run of a journal, as commands read it."""
    lines = told_lines() if lines is None else lines
    entries = [entry for entry in map(entry_of, lines) if entry is not None]
    return ReportedRun.of(path, entries, None, (Life.ENDED, ""))


def _steps(first: int, last: int, begin: float, generation: int = 1) -> list[dict[str, Any]]:
    return [
        line(
            "step",
            begin + step - first,
            step=step,
            epoch=(step + 3) // 4,
            seconds=0.5,
            samples=8,
            generation=generation,
        )
        for step in range(first, last + 1)
    ]


def _epoch(epoch: int, step: int, now: float, loss: float) -> dict[str, Any]:
    ledger = {"samples": 32, "fingerprint": "1", "exact": True}
    return line(
        "epoch",
        now,
        epoch=epoch,
        step=step,
        metrics={"loss": loss},
        validation={"loss": loss + 0.1},
        ledger=ledger,
        seconds=4.0,
    )
