"""The examples run by the commands that they name, and a death on the way changes nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

_FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(_FOLDER.glob("0*.py"))
SEARCH = _FOLDER / "search.py"
_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
_COMMAND = re.compile(r"^    ((?:holdfast run|python) .*)$", re.MULTILINE)


@pytest.mark.mpi
@pytest.mark.tensorflow
@pytest.mark.extended
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_commands_of_an_example_end_with_one_digest(example: Path, tmp_path: Path) -> None:
    commands = _COMMAND.findall(example.read_text(encoding="utf-8"))
    runs = [command for command in commands if command.startswith("holdfast")]
    printed = {}
    for command in commands:
        done = subprocess.run(
            command.replace("examples/", f"{example.parent}/"), shell=True, cwd=tmp_path,
            env=os.environ | {"PATH": _PATH}, stdin=subprocess.DEVNULL, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600.0,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        printed[command] = done.stdout

    digests = [re.findall(r"state sha256 (\w{64})", printed[run]) for run in runs]
    assert len(runs) == 2
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1
    assert " died after step" in printed[runs[1]]


def study_in(folder: Path) -> optuna.Study:
    (folder / "search").mkdir(exist_ok=True)
    storage = f"sqlite:///{folder}/search/study.db"
    return optuna.create_study(storage=storage, study_name="digits", load_if_exists=True)


@pytest.mark.mpi
@pytest.mark.tensorflow
@pytest.mark.extended
def test_search_goes_on_after_an_interrupt_and_a_kill(tmp_path: Path) -> None:
    for signum in (signal.SIGINT, signal.SIGKILL):
        search = begin_search(tmp_path, "--trials", "3", "--epochs", "40")
        await_epoch(search, tmp_path / "search" / "trial-0" / "journal.jsonl")
        search.send_signal(signum)
        search.communicate(timeout=120)
    begun = [(trial.state.name, trial.params) for trial in study_in(tmp_path).trials]

    search = begin_search(tmp_path, "--trials", "3", "--epochs", "40")
    said, _ = search.communicate(timeout=300)

    assert search.returncode == 0, said
    found = study_in(tmp_path).trials
    assert [state for state, _ in begun] == ["RUNNING", "RUNNING"]
    assert [trial.params for trial in found[:2]] == [params for _, params in begun]
    assert [trial.state.name for trial in found] == ["COMPLETE"] * 3
    runs = sorted(run.name for run in (tmp_path / "search").iterdir() if run.is_dir())
    assert runs == ["trial-0", "trial-1", "trial-2"]
    journal = (tmp_path / "search" / "trial-0" / "journal.jsonl").read_text(encoding="utf-8")
    assert '"event": "restored"' in journal
    assert re.search(r"best: trial \d has", said)


@pytest.mark.mpi
@pytest.mark.tensorflow
@pytest.mark.extended
def test_search_stops_the_run_of_a_trial_that_is_pruned(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    where = {"rate": optuna.distributions.FloatDistribution(1e-4, 1e-1, log=True)}
    for _ in range(5):  # as many as the pruner wants, and better than any other trial
        losses = dict.fromkeys(range(1, 2001), 0.0)
        study.add_trial(
            optuna.trial.create_trial(
                params={"rate": 0.01}, distributions=where, intermediate_values=losses, value=0.0
            )
        )

    search = begin_search(tmp_path, "--trials", "6", "--epochs", "2000")
    said, _ = search.communicate(timeout=300)

    assert search.returncode == 0, said
    pruned = study_in(tmp_path).trials[5]
    assert pruned.state.name == "PRUNED"
    assert 0 < len(pruned.intermediate_values) < 2000
    checkpoints = tmp_path / "search" / "trial-5" / "checkpoints"
    assert list(checkpoints.glob("step-*"))  # the run may be looked at, or gone on with


def begin_search(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SEARCH), *arguments], cwd=folder, stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def await_epoch(search: subprocess.Popen[str], journal: Path) -> None:
    """Wait until the next launch of a run has had an epoch."""
    deadline, launched = time.monotonic() + 120.0, '"event": "launch"'
    before = journal.read_text(encoding="utf-8").count(launched) if journal.exists() else 0
    while time.monotonic() < deadline:
        assert search.poll() is None
        text = journal.read_text(encoding="utf-8") if journal.exists() else ""
        if text.count(launched) > before and '"event": "epoch"' in text.rpartition(launched)[2]:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{journal} has no epoch")
