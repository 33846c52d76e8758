"""The trace of a run: files that are bounded and never in the way; and as Perfetto shows it."""

from __future__ import annotations

import base64
import io
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from journal_entries import entry

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.run_directory import Ownership
from holdfast.runtime.run.trace import TraceFiles, TracePiece, read_trace, spans_of, write_trace
from holdfast.runtime.system.codec import encode
from holdfast.runtime.system.timeline import Activity, Change

READ, COMPUTE, WAIT = Activity.READ, Activity.COMPUTE, Activity.WAIT


def piece(
    worker: int,
    clock_us: int,
    *changes: tuple[int, Activity],
    host: str = "",
    step: int = 1,
    **fields: Any,
) -> TracePiece:
    """Return a piece; moments are in microseconds of the clock of its host."""
    words = array("Q", [at << 16 | step << 4 | activity for at, activity in changes])
    text = base64.b64encode(words.tobytes()).decode()
    known = {"generation": 1, "step": step, "lost": 0, "offset_s": 0.0} | fields
    return TracePiece(host=host, worker=worker, words=text, clock_s=clock_us / 1e6, **known)


def vote(worker: int) -> TracePiece:
    return piece(worker, 10**13, (10**13, Activity.VOTE), host="a", step=7, offset_s=1.5)


def write(folder: Path, *workers: int, file_bytes: int = 1 << 20) -> list[str]:
    """Write a piece for each worker; return the warnings."""
    warnings: list[str] = []
    files = TraceFiles(folder, Ownership(folder.parent, "r"), warnings.append, file_bytes)
    for worker in workers:
        files.write(encode(vote(worker)).decode())
    files.close()
    return warnings


def test_pieces_come_back_with_their_changes(tmp_path: Path) -> None:
    assert write(tmp_path / "trace", 0, 1) == []

    found = list(read_trace(tmp_path / "trace"))

    assert found == [vote(0), vote(1)]
    assert list(found[0].changes) == [Change(10**13, 7, Activity.VOTE)]


def test_next_job_goes_on_with_the_trace_after_a_torn_line(tmp_path: Path) -> None:
    write(tmp_path, 0)
    with (tmp_path / "000001.jsonl").open("ab") as file:
        file.write(b'\n{"host": "a", "wor')

    write(tmp_path, 1)

    assert [found.worker for found in read_trace(tmp_path)] == [0, 1]


def test_first_file_and_the_newest_ones_stay(tmp_path: Path) -> None:
    size = 2 + len(encode(vote(10)))  # one piece a file

    write(tmp_path, *range(10, 22), file_bytes=size)

    assert [found.worker for found in read_trace(tmp_path)] == [10, 19, 20, 21]


def test_trace_that_cannot_be_written_is_told_of_once(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("not a folder")

    warnings = write(tmp_path / "trace", 0, 1)

    assert len(warnings) == 1
    assert "has gaps" in warnings[0]


def test_run_without_a_trace_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no trace: run the job with --trace"):
        list(read_trace(tmp_path / "trace"))


LATE, SOON = 5.000300, 5.000010
"""The head's clock is 5 s ahead of that of b."""


@pytest.mark.parametrize(
    ("pieces", "spans"),
    [
        (
            [piece(0, 60, (10, READ), (30, COMPUTE)), piece(0, 100, (80, WAIT))],
            [(0, "read", 10, 30), (0, "compute", 30, 80), (0, "wait", 80, 100)],
        ),
        ([piece(3, 60, (10, COMPUTE)), piece(3, 95)], [(3, "compute", 10, 95)]),
        (
            [piece(0, 60, (10, READ), (30, COMPUTE)), piece(0, 100, (80, WAIT), lost=5)],
            [(0, "read", 10, 30), (0, "wait", 80, 100)],
        ),
        (
            [piece(0, 60, (10, READ)), piece(0, 95, (80, READ), generation=2)],
            [(0, "read", 10, 60), (0, "read", 80, 95)],
        ),
        (
            [
                piece(0, 5_000_050, (5_000_020, READ), host="a"),
                piece(1, 50, (20, READ), (40, WAIT), host="b", offset_s=LATE),
                piece(1, 90, (60, READ), host="b", offset_s=SOON),
            ],
            [
                *((0, "read", 5_000_020, 5_000_050), (1, "read", 5_000_030, 5_000_050)),
                *((1, "wait", 5_000_050, 5_000_070), (1, "read", 5_000_070, 5_000_100)),
            ],
        ),
    ],
    ids=["later piece", "death", "loss has no end", "another launch", "slow message of a host"],
)
def test_span_lasts_until_the_next_one_or_the_end_of_its_piece(
    pieces: list[TracePiece], spans: list[tuple[int, str, int, int]]
) -> None:
    found = [(s.worker, s.activity.label, s.begin_us, s.end_us) for s in spans_of(pieces)]

    assert found == spans


def test_file_has_tracks_for_hosts_workers_and_the_job() -> None:
    entries = [
        entry("launch", 1.0, generation=1, workers=[0, 1]),
        entry("failure", 2.0, worker=1, cause="signal SIGKILL"),
        entry("recovery", 2.5, lost=[1], survivors=[0], next_step_ms=400.0, detected=2.1),
        entry("checkpoint", 3.0, step=5, seconds=0.25, bytes=10),
        entry("job_ended", 4.0, exit_code=0),
    ]
    pieces = [
        piece(w, 590, (500 + 10 * w, READ), (550, WAIT), host=host, offset_s=1e9 + 1.5 - 0.0005)
        for w, host in enumerate("ab")
    ]
    file = io.StringIO()

    counts = write_trace(pieces, entries, file)

    events = json.loads(file.getvalue())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    hosts = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    found = {
        (hosts[e["pid"]], names[e["pid"], e["tid"]], e["name"]): (e["ts"], e.get("dur"))
        for e in events
        if e["ph"] != "M"
    }
    assert counts == {"read": 2, "wait": 2}
    assert found == {
        ("host a", "worker 0", "read"): (500_000, 50),
        ("host a", "worker 0", "wait"): (500_050, 40),
        ("host b", "worker 1", "read"): (500_010, 40),
        ("host b", "worker 1", "wait"): (500_050, 40),
        ("job", "launches", "launch of 2 workers"): (0, 3_000_000),
        ("job", "recoveries", "recovery"): (1_100_000, 400_000),
        ("job", "saves", "save"): (1_750_000, 250_000),
        ("job", "events", "worker 1 died (signal SIGKILL)"): (1_000_000, None),
        ("job", "events", "recovered at step 0 without worker 1; worker 0 goes on"): (
            1_500_000,
            None,
        ),
        ("job", "events", "ended with exit code 0:"): (3_000_000, None),
    }
