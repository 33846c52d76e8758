"""All workers get the newest state: who has it, and what of it is there if a worker dies."""

from __future__ import annotations

import numpy as np
import pytest
from fake_communicator import FakeCommunicator, run_world

from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.exchange.communicator import WorldBroken
from holdfast.runtime.model.replica import ContributionShape, Microbatch
from holdfast.runtime.training.callback_host import Alone
from holdfast.runtime.training.catch_up import (
    NO_STATE,
    Source,
    find_source,
    share_state,
)
from holdfast.runtime.training.job_state import JobState

pytestmark = pytest.mark.usefixtures("one_core")


class OneTensor:
    """A replica that is nothing but its state."""

    def __init__(self, value: float) -> None:
        self.weights = np.full((2, 3), value, np.float32)
        self.flags = np.array(value > 1)

    @property
    def shape(self) -> ContributionShape:
        return ContributionShape(6, 1)

    def contribute(self, batch: Microbatch, out: FloatVector) -> None: ...

    def apply(self, total: FloatVector, samples: int) -> None: ...

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None: ...

    def results(self, sums: object, samples: int) -> dict[str, float]:
        return {}

    def state(self) -> Tensors:
        return {"weights": self.weights, "flags": self.flags}

    def load(self, state: Tensors) -> None:
        assert sorted(state) == ["flags", "weights"]
        self.weights[...] = state["weights"]
        self.flags[...] = state["flags"]


@pytest.mark.parametrize(
    ("versions", "source"),
    [
        ((NO_STATE,), Source(0, NO_STATE, is_needed=True)),
        ((NO_STATE, NO_STATE), Source(0, NO_STATE, is_needed=True)),
        ((4,), Source(0, 4, is_needed=False)),
        ((4, 4, 4), Source(0, 4, is_needed=False)),
        ((3, 4, 4), Source(1, 4, is_needed=True)),
        ((NO_STATE, NO_STATE, 0), Source(2, 0, is_needed=True)),
    ],
)
def test_source_is_the_lowest_rank_with_the_newest_state(
    versions: tuple[int, ...], source: Source
) -> None:
    assert find_source(versions) == source


def test_everyone_gets_the_state_of_the_source() -> None:
    def program(communicator: FakeCommunicator) -> tuple[bytes, bool, int, bytes]:
        replica = OneTensor(communicator.rank)
        cursor = Cursor(communicator.rank, 0, Cursor.start(2).ledger, np.full(2, 0.5))
        shared = share_state(communicator, 2, JobState(replica, Alone()).tensors(cursor))
        cursor = JobState(replica, Alone()).load(shared)
        communicator.leave()
        return replica.weights.tobytes(), bool(replica.flags), cursor.step, cursor.sums.tobytes()

    states = run_world(4, program)

    source = OneTensor(2)
    expected = (source.weights.tobytes(), True, 2, np.full(2, 0.5).tobytes())
    assert states == [expected] * 4


def test_state_is_whole_or_untouched_when_the_source_dies() -> None:
    def program(communicator: FakeCommunicator) -> str:
        replica = OneTensor(communicator.rank)
        before, start = replica.weights.tobytes(), Cursor.start(1)
        try:
            shared = share_state(communicator, 0, JobState(replica, Alone()).tensors(start))
        except WorldBroken:
            assert replica.weights.tobytes() == before
            ending = "broken"
        else:
            assert not shared["weights"].any()
            ending = "whole"
        communicator.leave()
        return ending

    endings = set()
    for moment in range(1, 60):
        told = run_world(3, program, seed=moment, deaths={0: moment})
        endings |= {told[1], told[2]}

    assert endings == {"whole", "broken"}


def test_whole_state_is_in_the_order_of_names() -> None:
    tensors = JobState(OneTensor(1), Alone()).tensors(Cursor.start(1))

    assert list(tensors) == sorted(tensors)
    assert [name for name in tensors if name.startswith("cursor/")] == [
        "cursor/evaluations",
        "cursor/ledger",
        "cursor/step",
        "cursor/sums",
    ]
