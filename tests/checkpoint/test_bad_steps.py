"""What was moved aside is bounded: the newest stay, and nothing of another run goes."""

from __future__ import annotations

import numpy as np
import pytest
from holders import flip

from holdfast.checkpoint.known_steps import OwnSteps, ReadMarks, bad_steps
from holdfast.checkpoint.names import MANIFEST_NAME, step_name
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.retention import Pruner, Retention, prune
from holdfast.checkpoint.scrub import Scrubber
from holdfast.checkpoint.store import CheckpointStore, save

RUN = "run"


def add(store: CheckpointStore, step: int, run_id: str = RUN) -> None:
    save(store, {"weights": np.full(3000, step)}, header=Header(run_id, 1, step))


def damage(store: CheckpointStore, name: str) -> None:
    flip(store.directory / name / "shard-00000-of-00001.h5", 5000)


def add_bad(store: CheckpointStore, step: int, save_name: str = "g2-a1", run_id: str = RUN) -> str:
    add(store, step, run_id)
    name = f".bad-{step:012d}-{save_name}"
    (store.directory / step_name(step)).rename(store.directory / name)
    damage(store, name)
    return name


def bad_names(store: CheckpointStore) -> list[str]:
    return [name for name in store.names() if name.startswith(".bad-")]


def test_names_are_sorted_as_numbers() -> None:
    names = [f".bad-{40:012d}-{save}" for save in ("g13-a1", "g9-a1", "g9-a12", "g9-a2")]

    found = [bad.bad_name for bad in bad_steps([*names, step_name(40), ".bad-junk"])]

    assert found == [names[0], names[2], names[3], names[1]]


def test_newest_two_stay_and_the_others_are_told(store: CheckpointStore) -> None:
    names = [add_bad(store, step) for step in (10, 30, 20, 40)]
    add(store, 50)

    reasons = prune(OwnSteps(store, RUN), Retention())

    assert bad_names(store) == [names[1], names[3]]
    assert sorted(reason.split()[0] for reason in reasons) == [names[0], names[2]]
    assert "moved aside because it is damaged" in reasons[0]
    assert prune(OwnSteps(store, RUN), Retention()) == ()


def test_two_of_one_step_stay_since_they_may_complement_each_other(store: CheckpointStore) -> None:
    names = [add_bad(store, 40, save_name) for save_name in ("g9-a1", "g13-a1", "g13-a2")]
    add(store, 40)

    prune(OwnSteps(store, RUN), Retention())

    assert bad_names(store) == sorted(names[1:])


@pytest.mark.parametrize("newest", ["is older", "is damaged", "is missing"])
def test_nothing_goes_before_a_step_as_new_was_read_back(
    store: CheckpointStore, newest: str
) -> None:
    names = [add_bad(store, step) for step in (20, 30, 40)]
    if newest != "is missing":
        add(store, 10 if newest == "is older" else 50)
    if newest == "is damaged":
        damage(store, step_name(50))

    prune(OwnSteps(store, RUN), Retention())

    assert bad_names(store) == names


def test_step_that_was_read_back_is_not_read_again(store: CheckpointStore) -> None:
    names = [add_bad(store, step) for step in (20, 30, 40)]
    add(store, 50)
    marks = ReadMarks()
    marks.mark(50, 0.0)
    damage(store, step_name(50))  # a second reading would find it

    Pruner(OwnSteps(store, RUN), Retention(), marks).prune(1.0)

    assert bad_names(store) == names[1:]


def test_what_may_be_another_runs_stays(store: CheckpointStore) -> None:
    others = [add_bad(store, 10, run_id="other"), add_bad(store, 20)]
    flip(store.directory / others[1] / MANIFEST_NAME, 50)
    own = [add_bad(store, step) for step in (5, 30, 40)]
    add(store, 50)

    prune(OwnSteps(store, RUN), Retention())

    assert bad_names(store) == [*others, *own[1:]]


def test_disk_that_rots_for_long_keeps_two_damaged_steps(store: CheckpointStore) -> None:
    """A scrub moved each of them aside, and nobody looked after the job."""
    steps, marks = OwnSteps(store, RUN), ReadMarks()
    scrubber = Scrubber(steps, marks, 1, 1.0)
    pruner = Pruner(steps, Retention(), marks)
    for step in range(10, 130, 10):
        add(store, step)
        if step % 20:
            damage(store, step_name(step))
        for _ in range(3):
            scrubber.run_one(float(step))
        pruner.prune(float(step))

    assert bad_names(store) == [f".bad-{step:012d}-g1-a1" for step in (90, 110)]
    assert store.steps() == (120, 100, 80)


def test_removal_that_was_cut_short_is_completed(store: CheckpointStore) -> None:
    bad = bad_steps([add_bad(store, 10)])[0]
    (store.directory / bad.bad_name).rename(store.directory / bad.removed_name)
    add(store, 50)

    assert prune(OwnSteps(store, RUN), Retention()) == ()

    assert store.names() == (step_name(50),)
