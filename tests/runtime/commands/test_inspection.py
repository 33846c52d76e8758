"""What is told of checkpoints without reading their data."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from holders import RUN_ID, STEP, WRITERS, manifest, shard, small_state
from hypothesis import given
from hypothesis import strategies as st
from whole_save import save

from holdfast.checkpoint.comparison import Comparison, Difference
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import TensorSpec
from holdfast.runtime.commands.inspection import (
    Position,
    comparison_json,
    inspect_run,
    inspection_json,
    position_of,
)
from holdfast.runtime.run.stored_run import StoredRun

CURSOR = {"step": STEP, "samples": 100, "global batch": 30}


@pytest.fixture
def run(tmp_path: Path) -> StoredRun:
    """A run with two steps, the older one in a single shard."""
    store = CheckpointStore(tmp_path)
    for step, writers in ((STEP - 10, 1), (STEP, WRITERS)):
        header = Header(RUN_ID, 2, step)
        save(store, small_state(), header=header, writers=writers, cursor=CURSOR)
    return StoredRun(tmp_path, store, RUN_ID)


@pytest.mark.parametrize(
    ("step", "samples", "batch", "position"),
    [
        (0, 100, 30, Position(0, 0, 4)),
        (3, 100, 30, Position(0, 3, 4)),
        (4, 100, 30, Position(1, 0, 4)),
        (10, 100, 30, Position(2, 2, 4)),
        (5, 90, 30, Position(1, 2, 3)),
        (5, 1, 30, Position(5, 0, 1)),
    ],
    ids=["begin", "last update", "epoch", "third epoch", "full batches", "batch above samples"],
)
def test_position_counts_whole_epochs_and_updates_of_the_next(
    step: int, samples: int, batch: int, position: Position
) -> None:
    assert position_of({"step": step, "samples": samples, "global batch": batch}) == position


@pytest.mark.parametrize("name", ["step", "samples", "global batch"])
@pytest.mark.parametrize("value", [None, "30", 3.5])
def test_cursor_of_another_program_tells_no_position(name: str, value: object) -> None:
    assert position_of(CURSOR | {name: value}) is None
    assert position_of({key: kept for key, kept in CURSOR.items() if key != name}) is None


@pytest.mark.parametrize("change", [{"samples": 0}, {"global batch": 0}, {"global batch": -3}])
def test_cursor_without_samples_tells_no_position(change: dict[str, int]) -> None:
    assert position_of(CURSOR | change) is None


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_position_leads_back_to_its_step(step: int, samples: int, batch: int) -> None:
    position = position_of({"step": step, "samples": samples, "global batch": batch})

    assert position is not None
    assert position.epochs * position.updates_per_epoch + position.updates == step
    assert 0 <= position.updates < position.updates_per_epoch
    assert (position.updates_per_epoch - 1) * batch < samples <= position.updates_per_epoch * batch


def test_position_says_nothing_of_an_epoch_that_has_not_begun() -> None:
    assert str(Position(2, 0, 4)) == "epochs complete: 2"
    assert str(Position(2, 1, 4)) == "epochs complete: 2, 1 of 4 updates of the next"


def test_steps_are_told_from_the_newest_on(run: StoredRun) -> None:
    os.utime(manifest(run.store), (0, 1234.5))

    found = inspect_run(run, STEP - 10)

    assert [(step.step, step.shards, step.damage) for step in found.steps] == [
        (STEP, WRITERS, None),
        (STEP - 10, 1, None),
    ]
    assert found.steps[0].completed == 1234.5
    assert found.manifest is not None
    assert (found.manifest.step, found.steps[1].nbytes) == (STEP - 10, found.manifest.nbytes)


def test_names_beside_the_steps_are_told(run: StoredRun) -> None:
    (run.store.directory / "notes.txt").touch()
    (run.store.directory / ".bad-000000000007-g1-a1").mkdir()

    others = inspect_run(run, STEP).others

    assert sorted(others) == [".bad-000000000007-g1-a1", "notes.txt"]


def test_step_of_another_run_is_damaged_but_its_size_is_told(run: StoredRun) -> None:
    other = StoredRun(run.path, run.store, "another")

    newest = inspect_run(other, STEP).steps[0]

    assert newest.damage == f"it belongs to run {RUN_ID}, not to another"
    assert (newest.shards, newest.nbytes) == (WRITERS, inspect_run(run, STEP).steps[0].nbytes)


def test_copy_without_a_record_refuses_no_step(run: StoredRun) -> None:
    copy = StoredRun(run.path, run.store, None)

    assert [step.damage for step in inspect_run(copy, STEP).steps] == [None, None]


def test_shard_that_is_cut_short_is_found_without_reading_it(run: StoredRun) -> None:
    os.truncate(shard(run.store, 1), 100)

    newest = inspect_run(run, STEP).steps[0]

    assert newest.damage is not None
    assert "shard 1 has" in newest.damage
    assert newest.shards == WRITERS


def test_step_without_a_manifest_has_no_contents(run: StoredRun) -> None:
    manifest(run.store).unlink()

    found = inspect_run(run, STEP)

    newest = found.steps[0]
    assert found.manifest is None
    assert newest.damage
    assert (newest.step, newest.nbytes, newest.shards, newest.completed) == (STEP, None, None, None)
    assert json.loads(inspection_json(found))["step"] is None


def test_json_of_a_step_has_its_tensors_and_its_position(run: StoredRun) -> None:
    content = json.loads(inspection_json(inspect_run(run, STEP)))

    step = content["step"]
    assert (content["run_id"], step["generation"], step["shards"]) == (RUN_ID, 2, WRITERS)
    assert step["cursor"] == CURSOR
    assert step["position"] == {"epochs": 10, "updates": 0, "updates_per_epoch": 4}
    assert [tensor["name"] for tensor in step["tensors"]] == sorted(small_state())
    bias = step["tensors"][0]
    assert bias == {"name": "bias", "dtype": "float16", "shape": [90], "bytes": 180, "pieces": 1}


def test_json_of_a_step_without_a_position_says_null(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    save(store, {"a": np.zeros(3)}, header=Header(RUN_ID, 1, 1))

    found = inspect_run(StoredRun(tmp_path, store, RUN_ID), 1)

    assert json.loads(inspection_json(found))["step"]["position"] is None
    assert (store.directory / step_name(1)).is_dir()


SPEC = TensorSpec("w", "float32", (2, 3))


@pytest.mark.parametrize(
    ("largest", "shown"),
    [(None, None), (0.5, 0.5), (math.nan, "nan"), (math.inf, "inf")],
    ids=["no floats", "finite", "nan", "inf"],
)
def test_distance_that_json_lacks_becomes_a_text(largest: float | None, shown: object) -> None:
    found = Comparison((Difference(SPEC, SPEC, 2, largest),), same=3)

    content = json.loads(comparison_json(found), parse_constant=pytest.fail)

    assert (content["is_same"], content["same"]) == (False, 3)
    assert content["differences"][0]["largest"] == shown
    assert content["differences"][0]["elements"] == 2


@pytest.mark.parametrize(("left", "right"), [(SPEC, None), (None, SPEC)], ids=["missing", "extra"])
def test_tensor_of_one_side_is_null_on_the_other(
    left: TensorSpec | None, right: TensorSpec | None
) -> None:
    (content,) = json.loads(comparison_json(Comparison((Difference(left, right),), 0)))[
        "differences"
    ]

    shown: dict[str, Any] = {"name": "w", "dtype": "float32", "shape": [2, 3], "bytes": 24}
    assert content["name"] == "w"
    assert (content["left"], content["right"]) == (left and shown, right and shown)


def test_comparison_without_a_difference_is_the_same() -> None:
    content = json.loads(comparison_json(Comparison((), 4)))

    assert content == {"is_same": True, "same": 4, "differences": []}
