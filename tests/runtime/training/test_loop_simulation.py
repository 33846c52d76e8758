"""Whole training loops under random deaths: the run ends with the bytes of the undisturbed one."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulation import (
    EPOCHS,
    KILL,
    SAMPLES,
    STEPS,
    Drawn,
    Ending,
    Launch,
    LazyExecutor,
    SimulatedJob,
    TinyReplica,
    TurningReplica,
    undisturbed_end,
    wait_for_nothing,
)

from holdfast.checkpoint.manifest import EpochMetrics
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.fault import Fault, Site
from holdfast.recovery.reduction import ReductionPlan, plan_reduction
from holdfast.recovery.world import Assignment, WorkerId, World, assign
from holdfast.runtime.data.feed import Feed
from holdfast.runtime.data.source import forward
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.saving.plan import SaveClock
from holdfast.runtime.system.worker_status import RequestFlag

pytestmark = pytest.mark.usefixtures("one_core")
SEEDS_IN_A_BATCH = 10
BATCHES = [
    0,
    *(pytest.param(batch, marks=pytest.mark.extended) for batch in (1, 2, 3, 4, 5)),
]
SIZES, PASSES = (9, 4, 10), 2
UPDATES = PASSES * len(SIZES)


@pytest.fixture(autouse=True)
def _waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_nothing(monkeypatch)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Ending]:
    """How one worker that nothing happens to ends, by the number of microbatches."""
    folder = tmp_path_factory.mktemp("one")
    return {m: undisturbed_end(folder / f"run-{m}", Launch(1, 1, m)) for m in range(1, 14)}


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_that_begin_with_the_same_weights_load_nothing(
    tmp_path: Path, workers: int
) -> None:
    """To copy and to load their own weights would make the first step of a large model late."""
    loaded: list[str] = []

    class Counting(TinyReplica):
        def load(self, state: Tensors) -> None:
            loaded.extend(state)
            super().load(state)

    job = SimulatedJob(tmp_path / "run")

    endings = job.launch(Launch(workers, workers, 4, replica=Counting))

    assert all(ending is not None and ending.is_complete for ending in endings)
    assert not loaded


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
def test_number_of_workers_changes_no_bit(
    tmp_path: Path, undisturbed: dict[int, Ending], workers: int
) -> None:
    job = SimulatedJob(tmp_path / "run")

    endings = job.launch(Launch(workers, workers, microbatches=6, seed=workers))

    assert endings == [undisturbed[6]] * workers


@pytest.mark.parametrize("site", list(Site), ids=lambda site: site.value)
@pytest.mark.parametrize("workers", [2, 3])
def test_death_at_each_site_of_each_step(
    tmp_path: Path, undisturbed: dict[int, Ending], site: Site, workers: int
) -> None:
    for step in range(1, STEPS + 1):
        faults = [Fault(KILL, WorkerId(0), step, site)]
        if site is Site.REPAIR:  # somebody has to die first
            faults.append(Fault(KILL, WorkerId(1), step, Site.COMPUTE))
        job = SimulatedJob(tmp_path / f"step-{step}")

        endings = job.launch(Launch(workers, workers, 5, seed=step, faults=tuple(faults)))

        alive = [ending for ending in endings if ending is not None]
        assert alive == [undisturbed[5]] * len(alive)
        # A save that is due while another one is in flight is skipped, but for the last one.
        skipped = [record["step"] for record in job.journal("checkpoint_skipped")]
        is_saved = step == STEPS or (step in (2, 4) and step not in skipped)
        is_reached = site is not Site.SAVE or is_saved
        assert len(alive) == workers - (len(faults) if is_reached else 0)


PATHS = ("mapped", "messages", "hosts", "gathered")


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of its ways the exchange takes."""
    if request.param == "messages":
        kernels = itertools.count()
        name = "holdfast.runtime.exchange.memory._kernel"
        monkeypatch.setattr(name, lambda: b"%d" % next(kernels))
    if request.param in ("messages", "hosts"):  # the vectors are short
        monkeypatch.setattr("holdfast.runtime.exchange.sums.GATHERED_FLOATS", 0)
    return str(request.param)


@pytest.mark.parametrize("batch", BATCHES)
def test_random_deaths_change_no_bit(
    tmp_path: Path, undisturbed: dict[int, Ending], path: str, batch: int
) -> None:
    for number in range(SEEDS_IN_A_BATCH):
        seed = 1000 * PATHS.index(path) + batch * SEEDS_IN_A_BATCH + number
        print("seed", seed)
        hosts = "aab" if path in ("hosts", "gathered") else ""
        job = SimulatedJob(tmp_path / f"seed-{seed}", hosts=hosts)
        play(job, seed, undisturbed)


def test_clocks_that_differ_change_no_bit(
    tmp_path: Path,
    undisturbed: dict[int, Ending],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each worker's clock says by the dice that a save is due; all save the same steps."""
    dice = random.Random(2003)
    monkeypatch.setattr(SaveClock, "is_due", lambda clock, now: dice.random() < 0.4)
    for seed in range(SEEDS_IN_A_BATCH):
        print("seed", seed)
        job = SimulatedJob(tmp_path / f"seed-{seed}")
        deaths = _random_deaths(dice, 4)
        deaths.pop(max(deaths, default=0), None)  # one lives to tell

        endings = job.launch(Launch(4, 4, 6, seed=seed, deaths=deaths, save_every="1h"))

        alive = [ending for ending in endings if ending is not None]
        assert alive == [undisturbed[6]] * len(alive)
        assert {record["step"] for record in job.journal("checkpoint")} >= {STEPS}


@pytest.mark.parametrize(
    ("wishes", "kept"),
    [
        ((1, None), (6, 5)),
        ((1, ("loss", "min")), (6, 5)),
        ((1, ("loss", "max")), (6, 5, 3)),
        ((1, ("val_loss", "max")), (6, 5, 3)),
        (("1h", None), (6,)),
        (("1h", ("val_loss", "min")), (6, 3)),
        (("epoch", None), (6, 3)),
    ],
)
def test_checkpoints_that_are_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wishes: tuple[int | str, tuple[str, str] | None],
    kept: tuple[int, ...],
) -> None:
    job = SimulatedJob(tmp_path / "run")
    monkeypatch.setattr(LazyExecutor, "patience", (0,))

    save_every, keep_best = wishes
    job.launch(Launch(1, 1, 2, save_every=save_every, keep_best=keep_best))

    store = CheckpointStore(tmp_path / "run")
    assert store.steps() == kept
    measured = EpochMetrics.of(store.scan(6).manifest().cursor)
    assert measured is not None
    assert (measured.epoch, measured.step) == (EPOCHS, STEPS)
    assert measured.values.keys() == {"loss", "val_loss"}


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("site", [Site.SAVE, Site.COMPUTE, Site.REDUCE])
def test_death_beside_the_save_of_an_epochs_end_does_not_move_it_to_the_next_step(
    tmp_path: Path, undisturbed: dict[int, Ending], site: Site, victim: int
) -> None:
    """Only a checkpoint of that very step can be the best; the survivors still have its state."""
    end = STEPS // EPOCHS
    job = SimulatedJob(tmp_path / "run")
    step = end if site is Site.SAVE else end + 1
    faults = (Fault(KILL, WorkerId(victim), step, site),)

    endings = job.launch(Launch(2, 2, 6, save_every="1h", keep_best=("loss", "max"), faults=faults))

    assert [ending for ending in endings if ending] == [undisturbed[6]]
    store = CheckpointStore(tmp_path / "run")
    assert store.steps() == (STEPS, end)
    measured = EpochMetrics.of(store.scan(end).manifest().cursor)
    assert measured is not None
    assert (measured.epoch, measured.step) == (1, end)
    assert [record["step"] for record in job.journal("checkpoint")] == [end, STEPS]


def test_plan_that_was_cut_short_is_carried_out_when_the_run_goes_on(tmp_path: Path) -> None:
    job = SimulatedJob(tmp_path / "run")
    stop = Launch(1, 1, 2, save_every=1, asks=RequestFlag.STOP, asks_at_step=3)
    job.launch(stop)
    store = CheckpointStore(tmp_path / "run")
    oldest = store.steps()[-1]
    (store.directory / f"step-{oldest:012d}").rename(store.directory / f".del-{oldest:012d}")

    job.launch(Launch(1, 1, 2, save_every=1))

    assert f".del-{oldest:012d}" not in store.names()
    assert store.steps()[0] == STEPS


def play(job: SimulatedJob, seed: int, undisturbed: dict[int, Ending]) -> None:
    """Launch a job again and again until it is complete; compare with the undisturbed one."""
    dice = random.Random(seed)
    microbatches = dice.randint(1, 13)
    workers = dice.randint(1, 8)
    save_every = dice.choice([1, 2, 3, 100])
    for attempt in range(4):
        is_last = attempt == 3
        terms = Launch(
            workers,
            max(1, workers - dice.choice([0, 0, 1, 2])),
            microbatches,
            seed=seed * 10 + attempt,
            deaths={} if is_last else _random_deaths(dice, workers),
            asks=RequestFlag.NONE if is_last else dice.choice([RequestFlag.NONE, *RequestFlag]),
            asks_at_step=dice.randint(1, STEPS),
            save_every=save_every,
        )
        alive = [ending for ending in job.launch(terms) if ending is not None]
        assert len(set(alive)) <= 1, (seed, alive)
        if alive and alive[0].is_complete:
            assert alive[0] == undisturbed[microbatches], seed
            _assert_exact(job, seed)
            return
    raise AssertionError(f"seed {seed}: the job did not complete in a launch without deaths")


def _random_deaths(dice: random.Random, workers: int) -> dict[int, int]:
    """Kill some or all of the workers, at unrelated moments or close to each other."""
    victims = dice.sample(range(workers), dice.randint(0, workers))
    around = int(2 ** dice.uniform(0, 11))
    if dice.random() < 0.5:
        return {victim: around + dice.randint(0, 30) for victim in victims}
    return {victim: int(2 ** dice.uniform(0, 11)) for victim in victims}


def _assert_exact(job: SimulatedJob, seed: int) -> None:
    """Check that the journal holds every step and that each epoch used every sample once."""
    assert {record["step"] for record in job.journal("step")} == set(range(1, STEPS + 1)), seed
    epochs = {record["epoch"]: record["ledger"] for record in job.journal("epoch")}
    assert len(epochs) == EPOCHS, seed
    for ledger in epochs.values():
        assert (ledger["samples"], ledger["exact"]) == (SAMPLES, True), seed
    assert len({ledger["fingerprint"] for ledger in epochs.values()}) == 1, seed


def test_survivors_own_microbatches_like_a_fresh_world_from_the_next_step_on(
    tmp_path: Path,
    undisturbed: dict[int, Ending],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ``adopt`` leaves is scattered: more roots to exchange, more memory to hold."""
    planned: list[tuple[World, Assignment]] = []

    def plan(assignment: Assignment, world: World, microbatches: int) -> ReductionPlan:
        planned.append((world, assignment))
        return plan_reduction(assignment, world, microbatches)

    monkeypatch.setattr("holdfast.runtime.exchange.sums.plan_reduction", plan)
    victims = {0: 1, 1: 1, 4: 1, 5: 2, 6: 2, 7: 2}
    faults = tuple(Fault(KILL, WorkerId(w), step, Site.VOTE) for w, step in victims.items())
    job = SimulatedJob(tmp_path / "run")

    endings = job.launch(Launch(8, 8, microbatches=13, seed=3, faults=faults))

    assert [ending for ending in endings if ending] == [undisturbed[13]] * 2
    worlds = {world.workers: assignment for world, assignment in planned}
    last = max((world for world, _ in planned), key=lambda world: world.generation)
    assert last.workers == (2, 3)
    assert worlds[last.workers] == assign(13, last)
    first_of_last = next(assignment for world, assignment in planned if world == last)
    assert first_of_last != assign(13, last)  # so that only orphans were computed again


def by_passes() -> tuple[Feed, Feed]:
    return Feed(Drawn(SIZES), len(SIZES)), Feed(Drawn(SIZES), len(SIZES), is_validation=True)


def only_read_on() -> tuple[Feed, Feed]:
    training, validation = forward(Drawn(SIZES)), forward(Drawn(SIZES))
    return Feed(training, len(SIZES)), Feed(validation, len(SIZES), is_validation=True)


@pytest.fixture(scope="module")
def undisturbed_batches(tmp_path_factory: pytest.TempPathFactory) -> Ending:
    ending = undisturbed_end(tmp_path_factory.mktemp("one") / "run", Launch(1, 1, 5), by_passes)
    assert ending.step == UPDATES
    return ending


@pytest.mark.parametrize("supply", [by_passes, only_read_on])
@pytest.mark.parametrize("workers", [2, 5])
def test_number_of_readers_of_a_pipeline_changes_no_bit(
    tmp_path: Path, undisturbed_batches: Ending, workers: int, supply: Any
) -> None:
    job = SimulatedJob(tmp_path / "run", supply)

    assert job.launch(Launch(workers, workers, 5, seed=workers)) == [undisturbed_batches] * workers


@pytest.mark.parametrize("supply", [by_passes, only_read_on])
@pytest.mark.parametrize("site", [Site.COMPUTE, Site.REDUCE, Site.APPLY, Site.SAVE])
def test_death_of_the_reader_at_each_step_changes_no_bit(
    tmp_path: Path, undisturbed_batches: Ending, site: Site, supply: Any
) -> None:
    for step in range(1, UPDATES + 1):
        job = SimulatedJob(tmp_path / f"step-{step}", supply)
        faults = (Fault(KILL, WorkerId(0), step, site),)

        endings = job.launch(Launch(3, 3, 5, seed=step, faults=faults))

        alive = [ending for ending in endings if ending is not None]
        assert len(alive) >= 2
        assert alive == [undisturbed_batches] * len(alive)


@pytest.mark.parametrize("supply", [by_passes, only_read_on])
def test_deaths_at_any_moment_and_a_relaunch_change_no_bit(
    tmp_path: Path, undisturbed_batches: Ending, supply: Any
) -> None:
    """The moments are those of the fake communicator: within a broadcast, a vote, a repair."""
    for seed in range(24):
        print("seed", seed)
        job = SimulatedJob(tmp_path / f"seed-{seed}", supply)
        dice = np.random.default_rng(seed)
        deaths = {rank: int(dice.integers(10, 260)) for rank in range(int(dice.integers(1, 4)))}
        endings = job.launch(Launch(3, 3, 5, seed=seed, deaths=deaths))
        alive = [ending for ending in endings if ending is not None]
        if not alive:
            alive = [end for end in job.launch(Launch(2, 2, 5, seed=seed)) if end is not None]
        assert alive == [undisturbed_batches] * len(alive)
        assert alive


def test_relaunch_on_a_pipeline_that_has_changed_is_refused(tmp_path: Path) -> None:
    def supply(also: int) -> tuple[Feed, None]:
        return Feed(Drawn(SIZES, also), len(SIZES)), None

    faults = tuple(Fault(KILL, WorkerId(worker), 6, Site.COMPUTE) for worker in (0, 1))
    job = SimulatedJob(tmp_path / "run", lambda: supply(0))
    job.launch(Launch(2, 2, 5, seed=2, faults=faults, save_every=1))
    newest = job.journal("checkpoint")[-1]["step"]
    assert newest % len(SIZES)  # in the middle of a pass

    with pytest.raises(ProgramError, match=r"other samples when it was read again, .* of pass"):
        SimulatedJob(tmp_path / "run", lambda: supply(1)).launch(Launch(1, 1, 5))


@pytest.fixture(scope="module")
def undisturbed_turns(tmp_path_factory: pytest.TempPathFactory) -> Ending:
    terms = Launch(1, 1, 5, replica=TurningReplica)
    return undisturbed_end(tmp_path_factory.mktemp("one") / "run", terms)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_number_of_workers_changes_no_bit_of_two_turns(
    tmp_path: Path, undisturbed_turns: Ending, workers: int
) -> None:
    job = SimulatedJob(tmp_path / "run")

    endings = job.launch(Launch(workers, workers, 5, seed=workers, replica=TurningReplica))

    assert endings == [undisturbed_turns] * workers
    assert [record["step"] for record in job.journal("epoch")] == [STEPS // 2, STEPS]


@pytest.mark.parametrize("moment", range(20, 220, 9))
def test_death_at_any_moment(tmp_path: Path, undisturbed_turns: Ending, moment: int) -> None:
    """Also between two turns: a worker that lacks the first one gets it from another."""
    job = SimulatedJob(tmp_path / "run")
    terms = Launch(3, 3, 5, seed=moment, deaths={moment % 3: moment}, replica=TurningReplica)

    alive = [ending for ending in job.launch(terms) if ending is not None]

    assert alive
    assert alive == [undisturbed_turns] * len(alive)


def test_resume_goes_on_from_a_whole_step(tmp_path: Path, undisturbed_turns: Ending) -> None:
    job = SimulatedJob(tmp_path / "run")
    faults = tuple(Fault(KILL, WorkerId(worker), 4, Site.REDUCE) for worker in range(2))

    assert job.launch(Launch(2, 2, 5, faults=faults, replica=TurningReplica)) == [None, None]
    endings = job.launch(Launch(3, 3, 5, seed=1, replica=TurningReplica))

    assert endings == [undisturbed_turns] * 3


def test_stop_comes_between_two_steps(tmp_path: Path, undisturbed_turns: Ending) -> None:
    job = SimulatedJob(tmp_path / "run")
    asked = Launch(2, 2, 5, asks=RequestFlag.STOP, asks_at_step=3, replica=TurningReplica)

    stopped = job.launch(asked)
    endings = job.launch(Launch(2, 2, 5, seed=1, replica=TurningReplica))

    assert all(ending is not None and not ending.is_complete for ending in stopped)
    assert endings == [undisturbed_turns] * 2
