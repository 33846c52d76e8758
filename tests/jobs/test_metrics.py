"""A job that is watched: figures of deaths, of a relaunch and of what workers do."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing import run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).parent / "scripts" / "many_callbacks.py"
OPTIONS = ("--threads", "1", "--save-every", "3", "--regrow", "never")
OF_A_STEP = ("read", "compute", "wait", "exchange", "vote", "apply", "callbacks", "copy")


@pytest.mark.extended  # tests/runtime/saving/test_metrics.py has each figure
def test_figures_count_deaths_and_a_relaunch_and_what_workers_spend_their_time_on(
    tmp_path: Path,
) -> None:
    shown = tmp_path / "job.prom"
    (tmp_path / "out").mkdir()
    job = run_job(
        SCRIPT,
        run_dir=tmp_path / "run",
        workers=2,
        faults=("kill worker=1 step=6 site=reduce", "kill worker=0 step=9 site=compute"),
        argv=(str(tmp_path / "out"),),
        options=(*OPTIONS, "--metrics-file", str(shown)),
        timeout_s=300,
    )

    assert job.exit_code == 0, job.stderr
    figures = shown.read_text(encoding="utf-8")
    assert 'holdfast_deaths_total{cause="signal SIGKILL"} 2.0' in figures
    assert "holdfast_relaunches_total 1.0" in figures
    assert "holdfast_job_exit_code 0.0" in figures
    assert [name for name in OF_A_STEP if f'activity="{name}"' not in figures] == []
