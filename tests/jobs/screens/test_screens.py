"""A run with deaths as people see it: on a terminal, in a log, and from elsewhere by ``status``."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from terminals import TERMINALS, TmuxTerminal, exit_code_in, wait_until
from workload import EVEN, LONG, request_of

from holdfast.runtime.system.own_process import program_command
from holdfast.testing import JobRequest, JobTraces, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(200)]

_MARK = "HOLDFAST_TEST_JOB"
_MAIN = "from holdfast.runtime.commands.main import main; main()"


@pytest.fixture
def traces() -> Iterator[JobTraces]:
    traces = JobTraces(_MARK)
    yield traces
    traces.remove([])


def logs(run_dir: Path, *options: str) -> str:
    command = program_command(_MAIN, "logs", str(run_dir), *options)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def status_json(run_dir: Path) -> dict[str, Any]:
    command = program_command(_MAIN, "status", str(run_dir), "--json")
    content = json.loads(subprocess.check_output(command, text=True))
    assert isinstance(content, dict)
    return content


AFTER_TRAINING = "running: script after training"


BAR = "  [━┄]{{{}}}  [ \\d]\\d?/7  "
NARROW, WIDE = BAR.format(10), BAR.format(20)
TOOK = r"in (\d+ ms|\d+\.\d s)"
FIRST_SCREEN = (
    r"holdfast: starting paced\.py on 3 workers .*",
    r"Epoch 1/30 - .* - loss: .*",
    r"holdfast: worker 1 died after step 59 \(signal SIGKILL\)",
    rf"holdfast: recovered {TOOK}, 2 workers go on",
    rf"epoch \d+/30{WIDE}.*2 of 3 workers.*",
)
SECOND_SCREEN = (
    r"holdfast: attached to the job in .*: paced\.py on 3 workers",
    r"holdfast: worker [02] died after step 99 \(signal SIGKILL\)",
    r"holdfast: worker [02] died after step 99 \(signal SIGKILL\)",
    r"holdfast: relaunching \d workers \(.*signal SIGKILL.*\)",
    rf"holdfast: relaunched {TOOK}, goes on from step \d+",
    r"Epoch 30/30 - .* - loss: .*",
    rf"epoch 30/30{WIDE}script after training.*",
)
"""What is on the screens of one job, in this order, with other lines in between."""


def assert_on_screen(lines: list[str], patterns: tuple[str, ...]) -> None:
    rest = iter(lines)
    for pattern in patterns:
        assert any(re.fullmatch(pattern, line.rstrip()) for line in rest), (pattern, lines)


def last(pattern: str) -> Any:
    """Return whether the live line has ``pattern``, and is no longer than the terminal."""
    return lambda lines: bool(lines and re.search(pattern, lines[-1]))


@pytest.mark.extended  # the screen of a whole job is watched below
@pytest.mark.skipif("tmux" not in TERMINALS, reason="a real terminal is resized, and has colours")
def test_screens_of_a_death_and_a_relaunch_at_both_widths(
    tmp_path: Path, traces: JobTraces
) -> None:
    """The first screen has colours, and the second one, which takes the job over, has none."""
    run_dir, linger = tmp_path / "run", tmp_path / "linger"
    deaths = [f"kill worker={worker} step={step}" for worker, step in ((1, 60), (0, 100), (2, 100))]
    request = request_of(LONG, run_dir, workers=3, faults=deaths)
    held = ["--linger", str(linger), "--gates", str(tmp_path), "--gate-steps", "40", "80"]
    environment = {**traces.environment(os.environ), "NO_COLOR": ""}
    terminal = TmuxTerminal([*request.command(), *held], environment, traces.scratch, 80)
    try:
        wait_until(terminal, last(rf"^epoch \d+/30{NARROW}"))
        assert "\x1b[" in terminal.codes()[-1]
        terminal.resize(120)
        wait_until(terminal, last(rf"^epoch \d+/30{WIDE}"))
        (tmp_path / "40").touch()
        wait_until(terminal, lambda lines: any("recovered in" in line for line in lines))
        lines = wait_until(terminal, last("  2 of 3 workers"))
        assert_on_screen(lines, FIRST_SCREEN)
    finally:
        terminal.close()

    command = program_command(_MAIN, "attach", str(run_dir))
    terminal = TmuxTerminal(command, {**environment, "NO_COLOR": "1"}, tmp_path, 120)
    try:
        wait_until(terminal, last("  2 of 3 workers"))
        assert "\x1b[" not in "".join(terminal.codes())
        (tmp_path / "80").touch()
        lines = wait_until(terminal, last("  script after training"))
        assert_on_screen(lines, SECOND_SCREEN)
        terminal.resize(80)
        lines = wait_until(terminal, last(rf"^epoch 30/30{NARROW}script after training"))
        assert len(lines[-1].rstrip()) < 80
        assert_after_training(status_json(run_dir))
        linger.touch()
        lines = wait_until(terminal, lambda lines: exit_code_in(lines) is not None)
    finally:
        terminal.close()

    assert exit_code_in(lines) == 0
    assert any(line.startswith(f"holdfast: completed step {LONG.steps}, ") for line in lines)
    assert status_json(run_dir)["last_save"]["step"] == LONG.steps
    assert_logged(run_dir)


def assert_after_training(status: dict[str, Any]) -> None:
    assert (status["outcome"], status["is_over"]) == (AFTER_TRAINING, False)
    assert status["progress"]["step"] == status["step"] == LONG.steps


def assert_logged(run_dir: Path) -> None:
    logged = logs(run_dir).splitlines()
    assert_on_screen(logged, (*FIRST_SCREEN[:-1], *SECOND_SCREEN[1:-1]))
    (found,) = filter(None, (re.fullmatch(r"\[w(\d)\] (written by .*)", line) for line in logged))
    assert logs(run_dir, "-w", found[1]) == f"{found[2]}\n"


def test_watch_ends_with_its_job_and_shows_how(tmp_path: Path, traces: JobTraces) -> None:
    """It is started before the job loses its client, and sees its end."""
    linger = tmp_path / "linger"
    request = request_of(EVEN, tmp_path / "run", workers=1)
    lingering = JobRequest(
        script=Path(__file__).parents[1] / "scripts" / "paced.py",
        run_dir=request.run_dir,
        microbatches=4,
        argv=[*EVEN.argv, "--pause-ms", "1", "--linger", str(linger)],
        options=request.options,
    )
    watch = program_command(_MAIN, "status", str(request.run_dir), "--watch", "--json")
    with start_job(lingering) as running:
        running.wait_for("completed")
        with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            first = json.loads(watching.stdout.readline())
            running.signal(9)
            orphaned = json.loads(watching.stdout.readline())
            while orphaned["outcome"] == AFTER_TRAINING:
                orphaned = json.loads(watching.stdout.readline())
            linger.touch()
            last = [json.loads(line) for line in watching.stdout][-1]
        assert watching.returncode == 0

    assert (first["outcome"], first["phase"]) == (AFTER_TRAINING, "concluding")
    assert "holdfast attach" in orphaned["outcome"]
    assert [worker["worker"] for worker in orphaned["workers"]] == [0]
    assert last["is_over"]
    assert last["outcome"].startswith(f"ended with exit code 0: completed step {EVEN.steps}")
