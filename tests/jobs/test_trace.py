"""A job that is watched: what each worker did when, and figures, through deaths and a relaunch."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from commands import holdfast_code

from holdfast.recovery.event import WorkerExited
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.entries import entries_of, of
from holdfast.runtime.run.journal import read_journal
from holdfast.testing import run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).parent / "scripts" / "many_callbacks.py"
OF_A_STEP = {"read", "compute", "wait", "exchange", "vote", "apply", "callbacks"}
SETTINGS = ("--threads", "1", "--save-every", "3")
_A_DEATH_IS_SEEN_WITHIN_US = 5_000_000


@pytest.mark.extended  # test_trace_files.py and test_trace_events.py have what is kept
def test_trace_has_every_phase_of_every_worker_until_its_death(tmp_path: Path) -> None:
    shown = tmp_path / "job.prom"
    (tmp_path / "out").mkdir()
    job = run_job(
        SCRIPT,
        run_dir=tmp_path / "run",
        workers=2,
        faults=("kill worker=1 step=6 site=reduce", "kill worker=0 step=9 site=compute"),
        argv=(str(tmp_path / "out"),),
        options=(*SETTINGS, "--trace", "--metrics-file", str(shown)),
        timeout_s=300,
    )
    assert job.exit_code == 0, job.stderr
    out = tmp_path / "trace.json"

    assert holdfast_code("report", tmp_path / "run", "--trace", out) == ExitCode.DONE

    of_workers = _spans(json.loads(out.read_text(encoding="utf-8"))["traceEvents"])
    entries = entries_of(read_journal(tmp_path / "run" / "journal.jsonl"))
    deaths = {e.event.worker: e.time for e in of(entries, WorkerExited)}
    assert deaths.keys() == {0, 1}, "both have died, and a relaunch has followed"
    assert len({launch for _, launch in of_workers}) == 2, "one trace has both launches"
    for (worker, launch), spans in of_workers.items():
        assert {span["name"] for span in spans} >= OF_A_STEP, (worker, launch)
        for one, other in itertools.pairwise(spans):
            assert one["ts"] + one["dur"] <= other["ts"], (worker, one, other)
    assert "copy" in {span["name"] for spans in of_workers.values() for span in spans}
    first = min(launch for _, launch in of_workers)
    zero_us = 1e6 * min(entry.time for entry in entries)
    for worker, died in deaths.items():
        last = of_workers[worker, first][-1]
        end_us = zero_us + last["ts"] + last["dur"]
        assert 0 <= 1e6 * died - end_us < _A_DEATH_IS_SEEN_WITHIN_US
    figures = shown.read_text(encoding="utf-8")
    assert 'holdfast_deaths_total{cause="signal SIGKILL"} 2.0' in figures
    assert "holdfast_relaunches_total 1.0" in figures
    assert "holdfast_job_exit_code 0.0" in figures
    assert 'activity="wait"' in figures


def _spans(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Return the spans by worker and launch, in the order of their begins."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        name = names.get((event["pid"], event["tid"]), "")
        if event["ph"] == "X" and name.startswith("worker "):
            found[int(name.removeprefix("worker ")), event["args"]["launch"]].append(event)
    return {key: sorted(spans, key=lambda span: span["ts"]) for key, spans in found.items()}
