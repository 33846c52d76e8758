"""The page of a real job: made while it lives, and after two deaths in place and a relaunch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from browser import draw, needs_browser
from commands import holdfast_code
from workload import LONG, assert_struck, request_of, wait_for_checkpoints

from holdfast.runtime.errors import ExitCode
from holdfast.testing import start_job

pytest.importorskip("plotly")
pytestmark = [pytest.mark.mpi, needs_browser]
_SHORT = replace(LONG, epochs=12)


def test_page_of_a_job_that_lost_workers_and_then_all_of_them(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    page = run_dir / "report.html"
    deaths = ((2, 30), (0, 60), (1, 60))
    faults = [f"kill worker={worker} step={step}" for worker, step in deaths]

    with start_job(request_of(_SHORT, run_dir, workers=3, faults=faults)) as running:
        wait_for_checkpoints(running, 1)
        assert holdfast_code("report", run_dir, "--html") == ExitCode.DONE
        of_a_living_job = page.read_text()
        job = running.wait()
    assert holdfast_code("report", run_dir, "--html") == ExitCode.DONE
    drawn = draw(page, tmp_path / "profile")

    assert job.exit_code == 0, job.stderr
    assert job.leftovers == ()
    assert_struck(job, faults)
    assert "<b>running</b>" in of_a_living_job
    assert "<b>complete</b>" in drawn.document
    assert drawn.document.count(str(job.sha256)) >= 2
    assert "1 recovered in place, 1 relaunch" in drawn.document
    assert drawn.console == []
    # Memory has a plot if it has grown: that of the host, in which others work, too.
    plots = 6 + (len(job.events("memory_used")) > 1)
    assert (drawn.plots, drawn.places) == (plots, plots)
    assert drawn.draws(f"relaunch from step {job.report.relaunches[0].restored_step or 0}")
