"""The whole state of a worker: its tensors, and what a manifest keeps of its callback host."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fake_communicator import FakeCommunicator, run_world
from local_communicator import LocalCommunicator
from rounds_callback_host import RoundsCallbackHost
from simulation import TinyReplica

from holdfast.recovery.ledger import Cursor, Ledger
from holdfast.runtime.data.feed import Feed, Pipelines
from holdfast.runtime.data.source import generator_source
from holdfast.runtime.exchange.membership import WorldBroken
from holdfast.runtime.script.calls import go_on_from
from holdfast.runtime.training.callback_host import Notes
from holdfast.runtime.training.job_state import TrainingState, notes_of, share_notes, was_over

CURSOR = Cursor(6, 2, Ledger(9, 2**63 + 1), np.array([0.5, 2.0]))


def rounds(fill: float) -> TrainingState:
    """Return a state whose replica and callback host hold ``fill`` everywhere."""
    replica = TinyReplica()
    replica.weights += np.float32(fill)
    replica.velocity -= np.float32(fill)
    callback_host = RoundsCallbackHost(replica)
    callback_host.kept += fill
    return TrainingState(replica, callback_host)


def bytes_of(state: TrainingState) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in state.tensors(CURSOR).items()}


def test_own_state_is_not_loaded_again() -> None:
    """A replica may hold its state in other memory than the arrays that it returns."""
    state = rounds(3.0)
    before, others = bytes_of(state), rounds(0.0).tensors(CURSOR)

    cursor = state.load(others, is_own=True)

    assert bytes_of(state) == before
    assert cursor.step == CURSOR.step


def test_loaded_state_is_the_saved_one_with_callback_host_and_cursor() -> None:
    saved, loaded = rounds(3.0), rounds(0.0)
    assert bytes_of(saved) != bytes_of(loaded)

    cursor = loaded.load(saved.tensors(CURSOR))

    assert bytes_of(loaded) == bytes_of(saved)
    assert {name: value.tobytes() for name, value in cursor.tensors().items()} == {
        name: value.tobytes() for name, value in CURSOR.tensors().items()
    }


@pytest.mark.parametrize("is_over", [True, False])
def test_manifest_tells_what_the_callback_host_knows_and_whether_it_has_ended_the_stage(
    *, is_over: bool
) -> None:
    state = rounds(1.0)
    state.callback_host.is_over = is_over  # type: ignore[misc]

    fields = json.loads(json.dumps(state.fields(is_complete=False)))

    assert notes_of(fields) == state.callback_host.notes()
    assert was_over(fields) == is_over
    assert "random states" not in fields


def test_mark_of_the_last_batch_stands_beside_the_notes_of_the_callback_host() -> None:
    elements = (np.full((2, 1), value, np.float32) for value in (1, 2, 3))
    feed = Feed(generator_source(elements), 3)
    of_host = rounds(1.0).callback_host
    state = TrainingState(TinyReplica(), of_host, Pipelines(feed))
    feed.train_batch(0, LocalCommunicator())

    notes = state.notes()

    assert notes == {**of_host.notes(), "pipeline": Pipelines(feed).notes()["pipeline"]}
    assert notes_of(json.loads(json.dumps(state.fields(is_complete=False)))) == notes


def test_training_that_was_complete_leaves_the_generators_as_it_did_then() -> None:
    random.seed(3)
    state, again = rounds(1.0), rounds(1.0)
    saved = json.loads(json.dumps(state.fields(is_complete=True)))
    first = random.random()

    again.restored(6, saved)
    states = again.random_at_end(6)

    assert again.random_at_end(7) is None  # it was trained on here, and has drawn itself
    assert states is not None
    go_on_from(states)
    assert random.random() == first


@pytest.mark.parametrize(
    ("cursor", "notes", "is_over"),
    [
        ({}, None, False),
        ({"companion": ["a list"], "companion is over": 1}, None, False),
        ({"companion": {"rounds": 3}, "companion is over": True}, {"rounds": 3}, True),
    ],
    ids=["none", "of another kind", "both"],
)
def test_manifest_without_notes_of_a_callback_host_has_none(
    *, cursor: Mapping[str, object], notes: Notes | None, is_over: bool
) -> None:
    assert notes_of(cursor) == notes
    assert was_over(cursor) == is_over


@pytest.mark.usefixtures("one_core")
def test_notes_are_whole_or_the_world_is_broken_when_their_source_dies() -> None:
    notes = {"tale": list(range(20))}

    def program(communicator: FakeCommunicator) -> Any:
        try:
            found: Any = share_notes(communicator, 0, notes if communicator.rank == 0 else None)
        except WorldBroken:
            found = "broken"
        communicator.leave()
        return found

    found = [end for moment in range(1, 30) for end in run_world(2, program, deaths={0: moment})]

    assert all(end in (None, "broken", notes) for end in found)
    assert "broken" in found
    assert notes in found
