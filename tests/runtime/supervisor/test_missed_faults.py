"""A fault that was asked for and never struck is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.supervisor.supervisor import missed_faults

KILL_7 = "kill worker=7 step=3"


@pytest.fixture
def struck(tmp_path: Path) -> Path:
    """A run directory in which a fault of worker 1 has struck."""
    journal = Journal(RunDirectory(tmp_path).journal_path, run_id="r", source="worker 1")
    journal.record("fault", worker=1, step=3, site="compute", attempt=1, kind="kill")
    journal.close()
    return tmp_path


def _missed(run_dir: Path, *faults: str) -> list[str]:
    options = JobOptions(script=Path("train.py"), run_dir=run_dir, workers=2, faults=faults)
    return list(missed_faults(options))


def test_fault_of_a_worker_that_never_was_is_told(struck: Path) -> None:
    (sentence,) = _missed(struck, "kill worker=1 step=3", KILL_7)

    assert sentence.startswith(
        "--inject 'kill worker=7 step=3 site=compute attempt=1' never struck"
    )
    assert sentence.endswith("are 0 to 1")


def test_faults_that_struck_cost_no_word(struck: Path) -> None:
    assert _missed(struck, "kill worker=1 step=3") == []
    assert _missed(struck) == []


def test_journal_that_is_gone_accuses_nobody(tmp_path: Path) -> None:
    assert _missed(tmp_path, KILL_7) == []
