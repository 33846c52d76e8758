"""A user asks for a save while the state is copied for another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulation import STEPS, Launch, LazyExecutor, SimulatedJob, wait_for_nothing

from holdfast.checkpoint.tensor import Tensors
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.saving.own_way import OwnWay, PendingSave
from holdfast.runtime.saving.plan import SaveRequest
from holdfast.runtime.system.heartbeat import RequestFlag

pytestmark = pytest.mark.usefixtures("one_core")


def ask_within_first_copy(patch: pytest.MonkeyPatch, asked: tuple[int, ...]) -> None:
    """Let the agent ask these ranks once, while they copy the state of the first save."""
    begin = OwnWay.begin
    waiting = set(asked)

    def asking_begin(way: OwnWay, request: SaveRequest, state: Tensors) -> PendingSave:
        if request.part in waiting:
            waiting.remove(request.part)
            way._context.page.ask(RequestFlag.SAVE)
        return begin(way, request, state)

    patch.setattr(OwnWay, "begin", asking_begin)


@pytest.mark.parametrize(("workers", "asked"), [(1, (0,)), (3, (2,)), (3, (0, 1, 2))])
def test_request_that_comes_during_the_copy_leads_to_another_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, asked: tuple[int, ...]
) -> None:
    """The save in hand was begun before it, so it is no answer."""
    wait_for_nothing(monkeypatch)
    monkeypatch.setattr(LazyExecutor, "patience", (0,))
    ask_within_first_copy(monkeypatch, asked)
    job = SimulatedJob(tmp_path / "run", Numerics.here(threads=1))

    endings = job.launch(
        Launch(workers, workers, 4, asks=RequestFlag.SAVE, asks_at_step=1, save_every=100)
    )

    assert len(set(endings)) == 1, "all workers have taken part in the same saves"
    first, second, last = (record["step"] for record in job.journal("checkpoint"))
    assert first < second < last == STEPS, "one for each request, and the last one"
