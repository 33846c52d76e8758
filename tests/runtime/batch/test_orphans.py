"""A host of a Slurm job that has lost the node of its batch script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.runtime.batch import slurm_calls
from holdfast.runtime.batch.slurm_calls import BatchNodes, SlurmRefused, bring_back

BATCH = {
    "ENVIRONMENT": "BATCH",
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NTASKS": "3",
    "SLURM_TASKS_PER_NODE": "1(x3)",
}
WHOLE = BatchNodes("n1", ("n1", "n2", "n3"))
LOST = BatchNodes("n1", ("n2", "n3"))
OVER = BatchNodes("n1", (), is_running=False)


class Slurm:
    """Answers in turn, and keeps what it is told to do."""

    def __init__(self, *answers: BatchNodes | None, requeues: bool = True) -> None:
        self._answers: Iterator[BatchNodes | None] = iter(answers)
        self._requeues = requeues
        self.orders: list[tuple[object, ...]] = []
        self.slept = 0

    def ask(self, job: str) -> BatchNodes:
        answer = next(self._answers)
        if answer is None:
            raise SlurmRefused(f"squeue has not answered for {job}")
        return answer

    def requeue(self, job: str) -> None:
        if not self._requeues:
            raise SlurmRefused("scontrol: Requested operation is presently disabled")
        self.orders.append(("requeue", job))

    def cancel(self, job: str) -> None:
        self.orders.append(("cancel", job))

    def sleep(self, _seconds: float) -> None:
        self.slept += 1


@pytest.fixture(autouse=True)
def _no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_calls.signal, "signal", lambda *_: None)


def _orders(monkeypatch: pytest.MonkeyPatch, slurm: Slurm, environ: dict[str, str]) -> object:
    monkeypatch.setattr(slurm_calls, "requeue", slurm.requeue)
    monkeypatch.setattr(slurm_calls, "cancel", slurm.cancel)
    bring_back(environ, slurm.ask, slurm.sleep)
    return slurm.orders


@pytest.mark.parametrize(
    ("slurm", "orders"),
    [
        (Slurm(WHOLE, None, WHOLE, LOST), [("requeue", "7")]),
        (Slurm(LOST, requeues=False), [("cancel", "7")]),
        (Slurm(WHOLE, OVER), []),
        (Slurm(*[WHOLE] * 240), []),
    ],
    ids=["lost", "no requeue on this site", "ended", "another end of the head"],
)
def test_job_comes_back_when_slurm_has_given_up_the_node_of_its_script(
    monkeypatch: pytest.MonkeyPatch, slurm: Slurm, orders: list[tuple[object, ...]]
) -> None:
    assert _orders(monkeypatch, slurm, BATCH) == orders


@pytest.mark.parametrize(
    "environ", [{}, {**BATCH, "ENVIRONMENT": "INTERACTIVE"}, {"PBS_JOBID": "8.head"}]
)
def test_nobody_is_asked_outside_of_a_batch_job_of_slurm(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]
) -> None:
    slurm = Slurm()

    assert _orders(monkeypatch, slurm, environ) == []
    assert slurm.slept == 0
