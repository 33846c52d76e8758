"""All workers restore one step together: each reads its part, and a bad byte is bad for all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from resumed_run import Run, Weights
from whole_save import save

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.names import step_name
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.order import SampleOrder
from holdfast.runtime.errors import UsageError
from holdfast.runtime.training.callback_host import CallbackHost
from holdfast.runtime.training.consistency import Mine
from holdfast.runtime.training.job_state import TrainingState
from holdfast.runtime.training.restoring import JobRestore, readers_of
from holdfast.runtime.training.training_job import Stage

FIRST, SECOND = Stage(), Stage(2, 10)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_each_worker_reads_its_part_of_the_shards(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = run.save(10, 1.0, writers=4)
    manifest = (directory / "MANIFEST.json").stat().st_size
    run.count(FileSystem.read, monkeypatch)

    run.restore(ranks=4)

    shards = sorted(path.stat().st_size + manifest for path in directory.glob("*.h5"))
    assert sorted(run.bytes_read.values()) == shards
    (restored,) = run.journal("restored")
    assert (restored["step"], restored["generation"]) == (10, 2)


@pytest.mark.parametrize(
    ("shards", "holders", "readers"),
    [
        (4, [(), (), (), ()], [0, 1, 2, 3]),
        (4, [(), ()], [0, 0, 1, 1]),
        (4, [(0, 1, 2, 3), (0, 1, 2, 3)], [0, 0, 1, 1]),  # on one host
        (3, [(0, 1, 2), (), (0, 1, 2)], [0, 2, 2]),  # on three, and the second one is new
        (4, [(), (0, 3), (3,)], [1, 0, 1, 2]),
    ],
)
def test_shard_is_read_where_it_is_in_memory(
    shards: int, holders: list[tuple[int, ...]], readers: list[int]
) -> None:
    assert readers_of(shards, holders) == readers


def test_byte_that_one_finds_wrong_sends_all_to_the_older_step(run: Run) -> None:
    run.save(10, 1.0, writers=4)
    directory = run.save(20, 2.0, writers=4)
    shard = sorted(directory.glob("*.h5"))[2]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    assert run.restore(ranks=4) == [(10, 1.0)] * 4
    (reason,) = run.reasons()
    assert "in shard 2 have a wrong digest" in reason
    (notice,) = {notice for notice in run.notices if "was rejected" in notice}
    assert notice.endswith(f"; without a copy, remove {directory}")
    told = [notice for notice in run.notices if notice.startswith("training goes on")]
    assert told == [
        "training goes on from checkpoint step 10, because step 20 is damaged; to mend that from a "
        f"copy, stop the job: `holdfast repair {run.directory} --from COPY`"
    ]


def test_state_of_another_model_is_refused_before_it_is_read(run: Run) -> None:
    run.save(10, 1.0, writers=2)

    with pytest.raises(UsageError, match=r"has weights \(\d+,\); .* weights \(7,\); begin"):
        run.restore(ranks=2, floats=7)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"samples": 80}, "with samples 64, and the script has samples 80"),
        ({"is_shuffled": False}, "with shuffle=True, and the script has shuffle=False"),
    ],
)
def test_other_samples_are_refused_with_both_ways_out(
    run: Run, changed: dict[str, int], said: str
) -> None:
    run.job = dataclasses.replace(run.job, order=SampleOrder(0, 64, 8, 2))
    run.save(10, 1.0, writers=2)
    order = dataclasses.replace(SampleOrder(0, 64, 8, 2), **changed)
    run.job = dataclasses.replace(run.job, order=order)

    with pytest.raises(UsageError, match=f"{said}.*--fresh, or choose another --run-dir"):
        run.restore(ranks=2)


def save_of(run: Run, stage: Stage, step: int, **fields: object) -> None:
    """Save a state of a training of the run's script."""
    cursor = stage.into({**run.job.facts_of_run, "step": step, **fields})
    state = TrainingState(Weights(float(step)), CallbackHost()).tensors(Cursor.start(1))
    run.save_state(state, step, cursor)


def train(run: Run, stage: Stage, steps: int) -> None:
    """Let the script come to one of its trainings, which ends at so many steps."""
    plan = dataclasses.replace(run.job.work_plan, begin=stage.begin, epochs=steps - stage.begin)
    run.job = dataclasses.replace(run.job, stage=stage, work_plan=plan)


def test_each_training_goes_on_from_its_own_checkpoints(run: Run) -> None:
    save_of(run, FIRST, 10)
    save_of(run, SECOND, 15)
    save_of(run, Stage(3, 20), 25)

    found = []
    for stage, steps in [(FIRST, 10), (SECOND, 20), (Stage(3, 20), 30)]:
        train(run, stage, steps)
        found.append(run.restore(ranks=2))

    assert found == [[(step, step)] * 2 for step in (10, 15, 25)]


def test_training_that_has_no_checkpoint_yet_begins_though_the_one_before_has_some(
    run: Run,
) -> None:
    save_of(run, FIRST, 5)
    save_of(run, FIRST, 10)
    for manifest in run.store.directory.rglob("MANIFEST.json"):
        manifest.write_bytes(b"{}\n")  # nobody reads them
    train(run, SECOND, 20)

    assert run.restore(ranks=2) == [None, None]
    assert run.reasons() == []


def test_training_that_begins_elsewhere_now_is_refused(run: Run) -> None:
    save_of(run, SECOND, 15)
    train(run, Stage(2, 12), 20)

    with pytest.raises(UsageError) as refused:
        run.restore(ranks=2)

    assert "training 2 of the script begins at step 12 now, and at another one" in str(
        refused.value
    )
    assert "an earlier training of the script has changed; start over" in str(refused.value)


def test_training_may_not_grow_once_the_next_one_has_begun(run: Run) -> None:
    save_of(run, FIRST, 10)
    save_of(run, SECOND, 15)
    train(run, FIRST, 12)

    with pytest.raises(UsageError, match=r"training 1 .* has ended at step 10 .* asks for 12 st"):
        run.restore(ranks=2)


@pytest.mark.parametrize(
    ("fields", "following"),
    [({}, []), ({"companion is over": True}, [SECOND]), ({}, [FIRST.after(10, by_error=True)])],
    ids=["no other one has begun", "its callbacks have ended it", "an error has ended it"],
)
def test_training_may_ask_for_more_steps(
    run: Run, fields: dict[str, object], following: list[Stage]
) -> None:
    save_of(run, FIRST, 10, **fields)
    for stage in following:
        save_of(run, stage, 15)
    train(run, FIRST, 12)

    assert run.restore(ranks=2) == [(10, 10.0)] * 2


def test_checkpoint_of_another_training_is_not_rejected(run: Run) -> None:
    save_of(run, FIRST, 10)
    save_of(run, SECOND, 15)
    train(run, FIRST, 10)
    context = run.context()

    mine = Mine(context, run.job, TrainingState(Weights(0.0), CallbackHost()), Cursor.start(1))
    restored = JobRestore(mine, context.communicator).run()

    assert restored is not None
    assert (restored.manifest.step, context.rejected) == (10, set())
    context.journal.close()
    context.page.close()


def test_earlier_training_prunes_nothing_of_a_later_one(run: Run) -> None:
    save_of(run, FIRST, 10)
    for step in (11, 12, 13):
        save_of(run, SECOND, step)
    train(run, FIRST, 10)

    run.restore(ranks=2)

    assert run.store.steps() == (13, 12, 11, 10)


def test_checkpoint_of_another_run_is_rejected(run: Run) -> None:
    run.save(10, 1.0, writers=2)
    state = TrainingState(Weights(2.0), CallbackHost()).tensors(Cursor.start(1))
    save(run.store, state, header=Header("other", 1, 20), cursor=dict(run.job.facts_of_run))

    assert run.restore(ranks=2) == [(10, 1.0)] * 2
    assert run.reasons() == ["it belongs to run other, not to run"]
    assert not any("is damaged" in text or "holdfast repair" in text for text in run.notices)
    assert "training goes on from checkpoint step 10" in run.notices
    assert any(f"; move {run.store.directory / step_name(20)} to" in text for text in run.notices)


def test_damaged_step_below_that_of_another_run_is_named(run: Run) -> None:
    run.save(10, 1.0, writers=2)
    directory = run.save(20, 2.0, writers=2)
    (directory / "MANIFEST.json").write_bytes(b"{}\n")
    state = TrainingState(Weights(3.0), CallbackHost()).tensors(Cursor.start(1))
    save(run.store, state, header=Header("other", 1, 30), cursor=dict(run.job.facts_of_run))

    assert run.restore(ranks=2) == [(10, 1.0)] * 2
    told = [text for text in run.notices if text.startswith("training goes on")]
    assert len(told) == 1
    assert "from checkpoint step 10, because step 20 is damaged; to mend that" in told[0]


def test_checkpoint_of_unknown_numerics_is_refused(run: Run) -> None:
    state = TrainingState(Weights(1.0), CallbackHost()).tensors(Cursor.start(1))
    save(run.store, state, header=Header("run", 1, 10), cursor=run.job.facts_of_run)

    with pytest.raises(UsageError, match="checkpoint step 10: the job's numerics have missing"):
        run.restore(ranks=2)
