"""``holdfast sweep``: trials that are runs, through deaths of a worker, a job and the sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import psutil
import pytest
from commands import holdfast_code

from holdfast.runtime.errors import ExitCode

BOUND_S = 120.0
SCRIPT = Path(__file__).parents[2] / "jobs" / "scripts" / "swept.py"
TERMS = ["--study", "sqlite:///s.db", "--trials", "3", "--parallel", "1", "--sampler", "random"]
OF_JOBS = ["-n", "2", "--preload", "", "--inject", "kill worker=1 step=3"]
COMMAND = [
    *(sys.executable, "-m", "holdfast", "sweep", *TERMS, *OF_JOBS, str(SCRIPT), "--fails", "1")
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fresh"], "--fresh is not for a sweep"),
        (["--hosts", "a:1,b:1"], "a sweep trains on one host, and --hosts names 2"),
        (["--save-every", "often"], "'often' is not a valid time to save"),
        (["--parallel", "2", "--metrics-port", "9"], "are of one job, and 2 trials run side by"),
        (["--parallel", "2", "--metrics-file", "a.prom"], "leave them out, or add --parallel 1"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_the_study(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)

    code = holdfast_code("sweep", *TERMS, *options, str(SCRIPT))

    assert code == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_optuna_the_install_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)

    assert holdfast_code("sweep", *TERMS, str(SCRIPT)) == ExitCode.USAGE
    assert "pip install optuna" in capsys.readouterr().err


@pytest.mark.process
def test_clients_stop_when_their_sweep_is_killed(tmp_path: Path) -> None:
    """ci/sweep.py shows that their trials go on with the next sweep."""
    endless = [*COMMAND, "--epochs", "1000000"]
    sweep = subprocess.Popen(endless, cwd=tmp_path, stderr=subprocess.DEVNULL)
    found: list[psutil.Process] = []
    deadline = time.monotonic() + BOUND_S
    while not found and time.monotonic() < deadline:
        assert sweep.poll() is None
        found = psutil.Process(sweep.pid).children()
        time.sleep(0.05)

    sweep.kill()
    sweep.wait()

    _, alive = psutil.wait_procs(found, BOUND_S)
    assert found
    assert not alive


@pytest.mark.mpi
def test_a_sweep_that_was_killed_with_a_job_goes_on_and_each_trial_is_there_once(
    tmp_path: Path,
) -> None:
    """ci/sweep.py does the same with twelve trials, Keras and pruning."""
    first = tmp_path / "holdfast-swept-sweep" / "trial-0"
    sweep = subprocess.Popen(COMMAND, cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not (first / "trial.jsonl").exists():  # its first worker has a parameter
        assert sweep.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    processes = [psutil.Process(sweep.pid), *psutil.Process(sweep.pid).children(recursive=True)]
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    assert sweep.wait() == -signal.SIGKILL

    again = subprocess.run(
        COMMAND, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "HOLDFAST_WAIT_LEASE": "60"},
    )  # fmt: skip

    assert again.returncode == 0, again.stderr
    begin, going_on = again.stderr.splitlines()[:2]
    assert begin.startswith("holdfast: 3 trials of swept.py, 1 at a time on ")
    assert begin.endswith(" each: `holdfast list holdfast-swept-sweep` shows them")
    assert going_on == "holdfast: 1 of 3 trials are there; going on"
    assert "3 of 3 trials: 2 complete, 1 failed" in again.stderr
    trials = optuna.load_study(study_name="swept", storage=f"sqlite:///{tmp_path / 's.db'}").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert trials[1].user_attrs["reason"] == "LookupError: no such sample"
    outputs = [(first.with_name(f"trial-{n}") / "output.log").read_text() for n in (0, 2)]
    for trial, output in zip((trials[0], trials[2]), outputs, strict=True):
        told = f"rate {trial.params['rate']!r} batch {trial.params['batch']}"
        assert output.count(told) >= 1
        assert "worker 1 died" in output
