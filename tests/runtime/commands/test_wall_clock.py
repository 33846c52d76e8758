"""A step of the wall clock cannot reach a job, but for the deadline of a batch system.

No test steps the clock, because all programs of a machine share it.  This one stands in its
place: the wall clock is read for stamps, and against the end that a batch system names
in wall-clock time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STAMPS = {
    "runtime/options/run_terms.py": "created=time.time(),",
    "runtime/run/journal.py": "time.time() - self.age_s",
}
DEADLINES = ("runtime/head/batch_job.py", "runtime/head/decider.py", "runtime/head/orders.py")
"""A batch system says when its allocation ends, as seconds since 1970."""
FILE_TIMES = ("runtime/keras/script_setup.py",)
"""Compared with the times of files only, which are of the same clock."""
LOSSES = ("runtime/head/job_setup.py", "runtime/run/failure_history.py")
"""How often hosts were lost of late; a step of the clock makes a host be tried, or left out."""
HOSTS = ("runtime/hosts/checked_hosts.py", "runtime/hosts/wire.py")
"""They compare the clocks of hosts, for ``holdfast doctor``."""
SCRIPTS = ("runtime/script/calls.py",)
"""They speak of the clock that the script reads."""
HANDED_ON = (
    "runtime/run/entries.py",
    "runtime/options/run_terms.py",
)
"""They hand stamps on: to ``holdfast status``, which shows them, and to a record made again."""
SHOWN = (
    "runtime/head/run_link.py",
    "runtime/saving/metrics.py",
    "runtime/run/trace.py",
)
"""They give traces and metrics the time of the wall, which people and Prometheus go by."""
_WALL_CLOCK = re.compile(
    r"\btime\.time(_ns)?\(|from time import (?!monotonic)|\bdatetime\b|"
    r"CLOCK_REALTIME|\blocaltime\(|\bgmtime\("
)
_READ = re.compile(r"""(\[|get\()["'](time|created)["']|\.created\b|\b(entry|saved)\.time\b""")


def _files() -> Iterator[Path]:
    """Yield the code that decides; the command line shows stamps to people."""
    for layer in ("api", "checkpoint", "recovery", "runtime"):
        files = sorted((ROOT / layer).rglob("*.py"))
        yield from (path for path in files if path.parent != ROOT / "runtime" / "commands")


def _lines(pattern: re.Pattern[str]) -> list[tuple[str, str]]:
    return [
        (str(path.relative_to(ROOT)), line.strip())
        for path in _files()
        for line in path.read_text(encoding="utf-8").splitlines()
        if pattern.search(line)
    ]


def test_wall_clock_is_read_for_stamps_and_deadlines_only() -> None:
    others = DEADLINES + FILE_TIMES + SCRIPTS + LOSSES + HOSTS + SHOWN
    found = [(path, line) for path, line in _lines(_WALL_CLOCK) if path not in others]

    assert [path for path, _ in found] == sorted(STAMPS)
    assert all(STAMPS[path] in line for path, line in found)


def test_no_decision_reads_a_stamp() -> None:
    assert [path for path, _ in _lines(_READ) if path not in HANDED_ON + LOSSES + SHOWN] == []
