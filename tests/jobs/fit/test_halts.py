"""An order to stop is obeyed whatever the script does, and another start repeats only that."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from extended import extended

from holdfast.testing import JobRequest, JobRun, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).parents[1] / "scripts" / "hanging.py"
MAIN = "from holdfast.runtime.commands.main import main; main()"
NOTHING = "stopped before training had begun, so there was nothing to save"
PLACES = {
    "adapt": (0, NOTHING),
    "reader": (3, "saved step 3; step 4, which had begun, is done again"),
    "validation": (6, "saved step 6; the validation of epoch 1 is done again"),
    "callback": (12, "saved step 12; the callbacks at the end of epoch 2 are run again"),
    "last callback": (18, "saved step 18; the callbacks at the end of epoch 3 are run again"),
    "end": (24, "stopped after training 2 of the script, whose end was saved at step 24; "
            "what the script does after it is done again"),
}  # fmt: skip
"""Where the script hangs, the step that is saved then, and what the job says."""


def run(folder: Path, place: str, workers: int) -> JobRun:
    """Run the script until it hangs at ``place``, then order it to stop; "" hangs nowhere."""
    folder.mkdir(exist_ok=True)
    (folder / "hang").write_text(place)
    request = JobRequest(
        script=SCRIPT,
        run_dir=folder / "run",
        workers=workers,
        microbatches=2,
        argv=[str(folder)],
        options=["--threads", "1", "--save-every", "100"],
    )
    with start_job(request) as running:
        if place:
            while not (folder / place).exists():
                assert running.processes(), running.stderr
                time.sleep(0.05)
            if place == "reader":
                see_who_hangs(folder / "run")
            running.signal(signal.SIGTERM)
        return running.wait()


def see_who_hangs(run_dir: Path) -> None:
    """Wait until ``holdfast status`` says who is waited for, and where; its figures are true."""
    while "waiting" not in (said := status_of(run_dir)):
        time.sleep(0.5)
    assert "for worker 0 in reads_a_pipe (hanging.py:" in said
    assert "step 3 of 18" in said
    assert "left" not in said
    assert "next at step 18" in said


def status_of(run_dir: Path) -> str:
    command = [sys.executable, "-c", MAIN, "status", str(run_dir)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return " ".join(said.split())


@pytest.mark.extended  # test_orders.py stops jobs, too
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "places", [("reader",), extended(tuple(PLACES))], ids=["one place", "all places"]
)
def test_stop_is_obeyed_whatever_the_script_does(tmp_path: Path, places: tuple[str, ...]) -> None:
    undisturbed = run(tmp_path / "undisturbed", "", 1)

    folder = tmp_path / "halted"
    for place in places:
        step, words = PLACES[place]
        job = run(folder, place, 2)
        assert job.exit_code == 75, job.stderr
        assert f"holdfast: {words}; run again to go on" in job.stderr.splitlines()
        assert max((save.step for save in job.report.checkpoints), default=0) == step
        assert job.report.failures == ()
        assert job.leftovers == ()
    ended = run(folder, "", 2)

    assert ended.exit_code == 0, ended.stderr
    assert ended.sha256 == undisturbed.sha256
    assert ended.stdout == undisturbed.stdout
    logs = [(place / "log.txt").read_text() for place in (folder, tmp_path / "undisturbed")]
    assert logs[0] == logs[1]
