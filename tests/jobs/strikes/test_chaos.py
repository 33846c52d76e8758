"""``holdfast chaos`` on real jobs: it starts them again, and tells a good run from a bad one."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from workload import SCRIPT, Workload

from holdfast.runtime.system.own_process import program_command

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

_MAIN = "from holdfast.runtime.cli.main import main; main()"
_SCRIPTS = Path(__file__).parents[1] / "scripts"
_TRAINED = Workload(
    microbatches=6, samples=160, global_batch=40, epochs=15, save_every=4, pause_ms=50
)
"""3 seconds at least: a strike in the first half comes before the end on a busy machine, too."""


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    stdout: str
    stderr: str
    report: dict[str, Any]


def _chaos(folder: Path, options: list[str], job: list[str]) -> Outcome:
    out = folder / "out"
    seed = [] if "--plan" in options else ["--seed", "3"]
    line = ["chaos", *seed, "--out", str(out), *options, "--", "run", *job]
    ended = subprocess.run(
        program_command(_MAIN, *line), capture_output=True, text=True, cwd=folder, check=False
    )
    path = out / "report.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    return Outcome(ended.returncode, ended.stdout, ended.stderr, report)


def _plan(folder: Path, *strikes: str) -> list[str]:
    path = folder / "plan.txt"
    path.write_text("\n".join(strikes))
    return ["--plan", str(path)]


def _job(*options: str, workers: int = 3) -> list[str]:
    return [
        *("-n", str(workers), "--microbatches", str(_TRAINED.microbatches), "--threads", "1"),
        *("--heartbeat-timeout", "5", *options),
        *(str(_SCRIPTS / "paced.py"), *_TRAINED.argv),
    ]


def test_run_is_started_again_when_a_strike_stops_it_or_takes_its_client(
    tmp_path: Path,
) -> None:
    plan = _plan(tmp_path, "term agent at step 8", "kill client at step 20")

    done = _chaos(tmp_path, plan, _job())

    assert done.exit_code == 0, done.stdout + done.stderr
    assert [code for code in done.report["exit_codes"] if code != 76] == [75, -9, 0]
    assert done.report["good"]
    assert done.report["sha256"] == done.report["twin_sha256"]
    assert done.report["steps"] == _TRAINED.steps
    assert "verdict       good" in done.stdout
    assert done.report["buckets"]["relaunch"] > 0
    strikes = [told["strike"] for told in done.report["strikes"]]
    assert strikes == ["term agent at step 8", "kill client at step 20"]


def test_script_without_the_same_bytes_twice_is_bad(tmp_path: Path) -> None:
    done = _chaos(tmp_path, ["--count", "0"], [str(_SCRIPTS / "clock_seeded.py")])

    assert done.exit_code == 1, done.stdout + done.stderr
    assert [complaint.split(":")[0] for complaint in done.report["complaints"]] == ["wrong bytes"]
    assert "replay  holdfast chaos --seed 3 --count 0 -- run " in done.stdout


def test_chaos_that_is_told_to_end_takes_the_job_with_it(tmp_path: Path) -> None:
    """Else a job would go on that nobody follows; the fixture of all tests would find it."""
    out = tmp_path / "out"
    line = ["chaos", "--out", str(out), "--", "run", *_job()]
    with subprocess.Popen(program_command(_MAIN, *line), stderr=subprocess.PIPE) as chaos:
        assert chaos.stderr is not None
        assert b"the undisturbed twin runs" in chaos.stderr.readline()
        while not (out / "twin" / "run" / "journal.jsonl").exists():
            time.sleep(0.01)
        chaos.terminate()

        assert chaos.wait() == 143


def test_directory_that_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    done = _chaos(tmp_path, [], [str(SCRIPT)])

    assert done.exit_code == 2
    assert "is there already" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []
