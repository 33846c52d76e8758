"""Whole training loops with a slow worker: it computes less, and the bytes stay the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from simulation import (
    BATCH,
    EPOCHS,
    KILL,
    Launch,
    SimulatedJob,
    TinyReplica,
    data,
    undisturbed_end,
    wait_for_nothing,
)

from holdfast.recovery.balance import FIRST_LOOK
from holdfast.recovery.fault import Fault, Site
from holdfast.recovery.reduction import FloatVector
from holdfast.recovery.world import WorkerId
from holdfast.runtime.data.samples import ArrayData
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.training.callback_host import CallbackHost

pytestmark = pytest.mark.usefixtures("one_core")
MICROBATCHES, STEPS_PER_EPOCH = 8, 40
STEPS = EPOCHS * STEPS_PER_EPOCH
FAST_S, SLOW_S = 0.005, 0.015


def many() -> tuple[ArrayData, ArrayData]:
    return data(STEPS_PER_EPOCH * BATCH), data(11)


def few() -> tuple[ArrayData, ArrayData]:
    """Return data for a look, and not for a deal."""
    return data((FIRST_LOOK + 2) // EPOCHS * BATCH), data(11)


class Paced(TinyReplica):
    """Takes a time for each microbatch, and counts those of each update."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.parts: list[int] = []
        self._now = 0

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        time.sleep(self.seconds)
        self._now += 1
        super().contribute(batch, out)

    def apply(self, total: FloatVector, samples: int) -> None:
        self.parts.append(self._now)
        self._now = 0
        super().apply(total, samples)


def trained(
    folder: Path, seconds: list[float], faults: tuple[Fault, ...] = (), *, hosts: str = ""
) -> list[list[int]]:
    """Train with workers of these paces; return what each has computed for each update."""
    replicas: dict[int, Paced] = {}

    def meet(replica: TinyReplica, rank: int) -> CallbackHost:
        assert isinstance(replica, Paced)
        replicas[rank], replica.seconds = replica, seconds[rank]
        return CallbackHost()

    workers = len(seconds)
    terms = Launch(workers, workers, MICROBATCHES, faults=faults, callback_host=meet, replica=Paced)
    with pytest.MonkeyPatch.context() as patch:
        wait_for_nothing(patch)
        endings = SimulatedJob(folder / "run", many, hosts=hosts).launch(terms)
    alive = [ending for ending in endings if ending is not None]
    expected = undisturbed_end(folder / "one", Launch(1, 1, MICROBATCHES), many)
    assert alive == [expected] * (workers - len(faults))
    return [replicas[rank].parts for rank in sorted(replicas)]


def test_slow_worker_computes_less_and_no_bit_changes(tmp_path: Path) -> None:
    fast, slow = trained(tmp_path, [FAST_S, SLOW_S])

    assert {*zip(fast, slow, strict=True)} == {(4, 4), (6, 2)}
    assert slow == sorted(slow, reverse=True), "it shifts once"
    assert (slow[FIRST_LOOK], slow[-1]) == (4, 2)


def test_death_begins_anew_with_equal_parts_on_several_hosts(tmp_path: Path) -> None:
    died_at = STEPS - 5
    fault = Fault(KILL, WorkerId(2), died_at, Site.REDUCE)

    first, second, _ = trained(tmp_path, [FAST_S, SLOW_S, FAST_S], (fault,), hosts="ab")

    assert second[died_at - 2] == 1
    assert set(zip(first[died_at:], second[died_at:], strict=True)) == {(4, 4)}


@pytest.mark.parametrize("moment", range(120, 136))
def test_death_near_a_look_leaves_nobody_waiting(tmp_path: Path, moment: int) -> None:
    """The second worker tells its pace in its moments 124 to 128."""
    terms = Launch(3, 3, MICROBATCHES, seed=moment, deaths={1: moment})
    with pytest.MonkeyPatch.context() as patch:
        wait_for_nothing(patch)
        first, dead, last = SimulatedJob(tmp_path / "run", few).launch(terms)

    assert dead is None
    assert first == last == undisturbed_end(tmp_path / "one", Launch(1, 1, MICROBATCHES), few)
