"""The newest steps stay; whatever is removed is hidden first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.header import Header
from holdfast.checkpoint.names import removed_name
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.retention import prune, prune_plan
from holdfast.checkpoint.save import save
from holdfast.checkpoint.store import CheckpointStore


@pytest.mark.parametrize(
    ("steps", "keep", "removed"),
    [
        ((), 3, ()),
        ((10,), 3, ()),
        ((30, 20, 10), 3, ()),
        ((40, 30, 20, 10), 3, (10,)),
        ((10, 40, 20, 30), 2, (10, 20)),
        ((30, 20, 10), 1, (10,)),
        ((30, 20, 10), 0, (10,)),
        ((30, 20, 10), -5, (10,)),
    ],
)
def test_plan_keeps_the_newest_and_never_fewer_than_two(
    steps: tuple[int, ...], keep: int, removed: tuple[int, ...]
) -> None:
    assert prune_plan(steps, keep) == removed


def fill(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        save(store, {"a": np.full(3, step)}, header=Header("run", 1, step))


def test_prune_leaves_the_newest_intact(store: CheckpointStore) -> None:
    fill(store, 10, 20, 30, 40)

    reasons = prune(store, 2)

    assert reasons == ()
    assert store.names() == ("step-000000000030", "step-000000000040")
    assert restore(store, 30).state["a"].tolist() == [30, 30, 30]


def test_prune_of_nothing_does_nothing(tmp_path: Path) -> None:
    assert prune(CheckpointStore(tmp_path / "missing"), 2) == ()


def test_removal_that_was_cut_short_goes_on(store: CheckpointStore) -> None:
    fill(store, 10, 20, 30)
    hidden = store.directory / removed_name(10)
    (store.directory / "step-000000000010").rename(hidden)
    (hidden / "MANIFEST.json").unlink()

    reasons = prune(store, 2)

    assert reasons == ()
    assert store.names() == ("step-000000000020", "step-000000000030")


def test_obstacle_is_a_reason_not_an_error(store: CheckpointStore) -> None:
    fill(store, 10, 20, 30)
    (store.directory / removed_name(10)).write_text("in the way")

    reasons = prune(store, 2)

    assert len(reasons) > 0
    assert store.steps() == (30, 20, 10)


def test_links_out_of_the_store_are_not_followed(store: CheckpointStore, tmp_path: Path) -> None:
    fill(store, 10, 20, 30)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    (store.directory / "step-000000000010" / "link").symlink_to(precious)

    prune(store, 2)

    assert (precious / "file").read_text() == "keep"
    assert store.steps() == (30, 20)
