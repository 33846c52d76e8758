"""The tables in MACHINES.md are those of the machines, and DESIGN.md names every file."""

from __future__ import annotations

import re
from pathlib import Path

import holdfast.recovery.errors as anchor
from holdfast.recovery import job, step

FOLDER = Path(anchor.__file__).resolve().parent
DESIGN = (FOLDER / "DESIGN.md").read_text(encoding="utf-8")
MACHINES = (FOLDER / "MACHINES.md").read_text(encoding="utf-8")


def step_table() -> str:
    """Return the worker's table as MACHINES.md shows it: a row for each state."""
    rows = ["| while it is | this ends it | and it goes on to |", "|---|---|---|"]
    for state in step.StepState:
        ways = {event: to for (at, event), to in step.TRANSITIONS.items() if at is state}
        for event, following in ways.items():
            rows.append(f"| {state.value} | {event.value} | {following.value} |")
    return "\n".join(rows)


def job_table() -> str:
    """Return the job's table as MACHINES.md shows it: a row for each event and what it does."""
    rows = ["| event | while it is | what is done |", "|---|---|---|"]
    ways: dict[tuple[str, str], list[str]] = {}
    for (state, event), action in job.TRANSITIONS.items():
        done = (action.__doc__ or "").splitlines()[0].rstrip(".")
        ways.setdefault((event.__name__, done), []).append(state.value)
    for (event, done), states in ways.items():
        rows.append(f"| `{event}` | {', '.join(states)} | {done} |")
    return "\n".join(rows)


def test_table_of_the_worker_is_the_machines() -> None:
    assert step_table() in MACHINES


def test_table_of_the_job_is_the_machines() -> None:
    assert job_table() in MACHINES


def test_every_file_has_its_noun() -> None:
    files = {path.name for path in FOLDER.glob("*.py")} - {"__init__.py"}

    rows = re.findall(r"^\| `\w+\.py`.*?\|", DESIGN, flags=re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+\.py", row)}

    assert files - named == set()
