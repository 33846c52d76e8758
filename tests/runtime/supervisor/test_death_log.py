"""What a death leaves in the journal, and what several deaths have in common."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.runtime.supervisor import job_log as module
from holdfast.runtime.supervisor.job_log import DeathLog

SAMPLES = {"step": 8, "microbatch": 1, "count": 2, "ids": [5, 17], "is_validation": False}


def exited(worker: int, **more: Any) -> dict[str, Any]:
    return {"kind": "worker_exited", "worker": worker, "step": 7, "samples": SAMPLES, **more}


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> DeathLog:
    monkeypatch.setattr(module, "usable_cores", lambda: 64)
    log = DeathLog()
    log.launching([4, 5, 6, 7])
    return log


def test_record_has_the_evidence_and_the_rank_at_launch(deaths: DeathLog) -> None:
    evidence = {"limit": "stall", "stacks": "f", "stderr": ["oh"], "core": 3, "status": -9}

    fields = deaths.died(exited(6, **evidence), "fenced")

    assert fields["launch_rank"] == 2
    assert {name: fields[name] for name in ("limit", "stacks", "stderr", "core")} == {
        name: evidence[name] for name in ("limit", "stacks", "stderr", "core")
    }
    assert (fields["cause"], fields["samples"]) == ("fenced", SAMPLES)
    assert "status" not in fields


def test_place_that_loses_its_workers_is_named_once(deaths: DeathLog) -> None:
    said = []
    for launch in range(5):
        deaths.launching([10 * launch + rank for rank in range(4)])
        deaths.died(exited(10 * launch + 2, core=launch), "signal SIGBUS")
        said += deaths.suspicions()

    assert said == ["rank 2 has lost 3 workers, far more than the others: is the machine sound?"]


def test_step_of_the_newest_deaths_is_named_with_its_samples(deaths: DeathLog) -> None:
    assert deaths.in_common() == []

    for worker in (4, 5):
        deaths.died(exited(worker), "signal SIGSEGV")

    assert deaths.in_common() == [
        "step 8 has killed workers 4, 5 while they computed microbatch 1, samples 5, 17"
    ]
