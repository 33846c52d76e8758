"""Promised steps stay; the others are hidden first, and only for a step that verifies."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem
from holders import damage, fill
from hypothesis import given
from hypothesis import strategies as st
from whole_save import save

from holdfast.checkpoint.manifest import EpochMetrics, Header
from holdfast.checkpoint.names import MANIFEST_NAME, removed_name, step_name
from holdfast.checkpoint.retention import (
    Best,
    KnownStep,
    Pruner,
    ReadMarks,
    Retention,
    Wanted,
    prune_plan,
)
from holdfast.checkpoint.store import CheckpointStore


@pytest.mark.parametrize(
    ("best", "metrics", "kept"),
    [
        (Best("loss"), {10: 3.0, 20: 1.0, 30: 2.0}, {20}),
        (Best("loss", is_smaller_better=False), {10: 3.0, 20: 1.0, 30: 2.0}, {10}),
        (Best("loss"), {20: 1.0, 30: 1.0}, {20}),
        (Best("accuracy"), {10: 3.0}, set()),
        (Best("loss"), {10: None, 20: 5.0, 30: 2.0}, {10, 30}),
    ],
)
def test_plan_keeps_the_best_and_what_may_be(
    best: Best, metrics: dict[int, float | None], kept: set[int]
) -> None:
    steps = [
        KnownStep(step, None if value is None else {"loss": value})
        for step, value in metrics.items()
    ]

    plan = prune_plan([*steps, KnownStep(40), KnownStep(50)], Retention(2, (Wanted(best=best),)))

    assert set(plan.kept) == kept | {40, 50}


def test_each_training_of_a_run_keeps_its_own_best() -> None:
    losses = {10: 0.2, 20: 0.1, 30: 0.3, 40: 9.0, 50: 7.0, 60: 8.0, 70: 0.0, 80: 0.0}
    steps = [KnownStep(step, {"loss": loss}) for step, loss in losses.items()]
    best = Best("loss")

    first, second = Wanted(15, best, until=30), Wanted(None, best, after=30, until=60)
    plan = prune_plan(steps, Retention(2, (first, second, Wanted(after=60))))

    assert set(plan.kept) == {20, 30, 50, 70, 80}  # 30 is a multiple of 15, 60 is no more


KNOWN = st.builds(
    KnownStep,
    st.integers(0, 60),
    st.none() | st.dictionaries(st.sampled_from(["loss", "val_loss"]), st.floats(-5, 5)),
)
STEPS = st.lists(KNOWN, max_size=12, unique_by=lambda known: known.step)
WANTED = st.builds(
    Wanted,
    st.none() | st.integers(1, 20),
    st.none() | st.builds(Best, st.sampled_from(["loss", "val_loss"]), st.booleans()),
    st.integers(-1, 30),
    st.none() | st.integers(30, 60),
)
RETENTIONS = st.builds(Retention, st.integers(-1, 6), st.lists(WANTED, max_size=3).map(tuple))


@given(STEPS, RETENTIONS)
def test_plan_splits_the_steps_and_keeps_what_it_promises(
    steps: list[KnownStep], retention: Retention
) -> None:
    plan = prune_plan(steps, retention)

    newest_first = sorted((known.step for known in steps), reverse=True)
    assert sorted(plan.kept + plan.removed, reverse=True) == newest_first
    assert plan.kept[:2] == tuple(newest_first[:2])
    assert set(newest_first[: max(2, retention.newest)]) <= set(plan.kept)
    for wanted in retention.wanted:
        own = filter(wanted.has, newest_first)
        if wanted.every is not None:
            assert {step for step in own if step % wanted.every == 0} <= set(plan.kept)


@given(STEPS, RETENTIONS, st.randoms(use_true_random=False))
def test_plan_made_again_plans_the_rest(
    steps: list[KnownStep], retention: Retention, dice: Random
) -> None:
    """After any part of a plan was carried out, the next plan ends where the first would."""
    plan = prune_plan(steps, retention)
    done = {step for step in plan.removed if dice.random() < 0.5}

    again = prune_plan([known for known in steps if known.step not in done], retention)

    assert again.kept == plan.kept
    assert set(again.removed) == set(plan.removed) - done


def fill_measured(store: CheckpointStore, losses: dict[int, float], *, epoch: int) -> None:
    """Save steps, those at the end of an epoch with its loss and all others with the last one."""
    latest: EpochMetrics | None = None
    for step, loss in losses.items():
        if step % epoch == 0:
            latest = EpochMetrics(step // epoch, step, {"loss": loss})
        cursor = latest.into({}) if latest else {}
        save(store, {"a": np.full(3, step)}, header=Header("run", 1, step), cursor=cursor)


def pruner_of(store: CheckpointStore, retention: Retention) -> tuple[Pruner, ReadMarks]:
    pruner = Pruner(store, retention)
    return pruner, pruner.marks


def test_best_is_learned_once_and_moves(store: CheckpointStore) -> None:
    pruner, _ = pruner_of(store, Retention(2, (Wanted(best=Best("loss")),)))
    for step, loss in {10: 2.0, 20: 3.0, 30: 4.0, 40: 1.0, 50: 5.0, 60: 5.0}.items():
        fill_measured(store, {step: loss}, epoch=10)
        assert pruner.prune() == ()

    assert store.steps() == (60, 50, 40)


def test_step_of_an_unreadable_manifest_stays(store: CheckpointStore) -> None:
    fill_measured(store, {10: 5.0, 20: 1.0, 30: 2.0, 40: 2.0}, epoch=10)
    (store.directory / "step-000000000010" / "MANIFEST.json").write_text("{}")

    Pruner(store, Retention(2, (Wanted(best=Best("loss")),))).prune()

    assert store.steps() == (40, 30, 20, 10)


def test_crafted_metric_does_not_keep_a_prune_from_its_work(store: CheckpointStore) -> None:
    epoch = {"number": 1, "step": 10, "metrics": {"loss": -(10**400)}}
    save(store, {"a": np.zeros(3)}, header=Header("run", 1, 10), cursor={"epoch": epoch})
    fill_measured(store, {20: 1.0, 30: 2.0, 40: 2.0}, epoch=10)

    assert Pruner(store, Retention(2, (Wanted(best=Best("loss")),))).prune() == ()
    assert store.steps() == (40, 30, 20)


@pytest.mark.parametrize(
    ("saved", "damaged", "keep", "left"),
    [
        ((10, 20, 30, 40), (40,), 2, (40, 30, 20)),
        ((10, 20, 30, 40), (), 2, (40, 30)),
        # The job has fallen back to 300, and gone on to 350.
        ((100, 200, 300, 400, 500, 350), (400, 500), 3, (500, 400, 350, 300, 200)),
        ((100, 200, 300, 400, 500, 350), (300, 400, 500), 3, (500, 400, 350, 300, 200, 100)),
        ((100, 200, 300, 400, 500, 350), (500,), 3, (500, 400, 350, 300)),
        ((100, 200, 300, 400, 500, 350), (200, 500), 3, (500, 400, 350, 300)),
        ((100, 200, 300), (100, 200, 300), 2, (300, 200, 100)),
        ((100, 200, 300, 400), (200, 400), 2, (400, 300, 200, 100)),
    ],
)
def test_damaged_step_does_not_count_as_one_that_is_kept(
    store: CheckpointStore,
    saved: tuple[int, ...],
    damaged: tuple[int, ...],
    keep: int,
    left: tuple[int, ...],
) -> None:
    fill(store, *saved)
    for step in damaged:
        damage(store, step)

    Pruner(store, Retention(keep)).prune()

    assert store.steps() == left


@pytest.mark.parametrize("retention", [Retention(2), Retention(2, (Wanted(best=Best("loss")),))])
def test_steps_of_another_run_push_no_own_step_out(
    store: CheckpointStore, retention: Retention
) -> None:
    """A user has copied them there, and the other run is further."""
    fill(store, 10, 20, 30, run_id="mine")
    fill(store, 1100, 1200, run_id="other")

    reasons = Pruner(store, retention, "mine").prune()

    assert store.steps() == (1200, 1100, 30, 20)
    assert reasons == tuple(
        f"step {step} does not verify, so it replaces no older step: it belongs to run other, "
        "not to mine"
        for step in (1200, 1100)
    )


@given(STEPS, RETENTIONS, st.sets(st.integers(0, 60)))
def test_damage_that_is_known_never_makes_a_step_go(
    steps: list[KnownStep], retention: Retention, damaged: set[int]
) -> None:
    kept = prune_plan(steps, retention, damaged).kept

    sound = sorted({known.step for known in steps} - damaged, reverse=True)
    assert set(prune_plan(steps, retention).kept) <= set(kept)
    assert set(sound[: max(2, retention.newest)]) <= set(kept)


@given(
    st.sets(st.integers(1, 20), min_size=1, max_size=7),
    st.sets(st.integers(1, 20)),
    st.sets(st.integers(1, 20)),
    st.integers(0, 4),
)
def test_prune_that_meets_damage_leaves_as_many_sound_steps_as_are_to_be_kept(
    steps: set[int], damaged: set[int], known: set[int], keep: int
) -> None:
    """Some of the damage is known before; a prune that meets none has read one step in ``keep``."""
    store = CheckpointStore(Path("/run/job"), FakeFileSystem())
    fill(store, *steps)
    for step in steps & damaged:
        store.disk.remove_file(store.directory / step_name(step) / MANIFEST_NAME)
    pruner = Pruner(store, Retention(keep), unsound=steps & damaged & known)

    has_met_damage = bool(pruner.prune()) or bool(steps & damaged & known)

    left = set(store.steps())
    sound = steps - damaged
    assert max(sound, default=None) == max(left - damaged, default=None)
    if has_met_damage:
        assert len(left - damaged) >= min(max(keep, 2), len(sound))


def test_one_save_in_as_many_as_are_kept_is_read_back(store: CheckpointStore) -> None:
    pruner, marks = pruner_of(store, Retention(3))
    for step in range(1, 13):
        fill(store, step)
        assert pruner.prune() == ()

    assert store.steps() == (12, 11, 10)
    assert [step for step in range(1, 13) if step in marks.whole] == [4, 7, 10]


def test_obstacle_is_a_reason_not_an_error(store: CheckpointStore) -> None:
    fill(store, 10, 20, 30)
    (store.directory / removed_name(10)).write_text("in the way")

    reasons = Pruner(store, Retention(2)).prune()

    assert len(reasons) > 0
    assert store.steps() == (30, 20, 10)


def test_links_out_of_the_store_are_not_followed(store: CheckpointStore, tmp_path: Path) -> None:
    fill(store, 10, 20, 30)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    (store.directory / "step-000000000010" / "link").symlink_to(precious)

    Pruner(store, Retention(2)).prune()

    assert (precious / "file").read_text() == "keep"
    assert store.steps() == (30, 20)
