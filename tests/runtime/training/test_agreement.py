"""Effects of callback hosts are the same on all workers, whatever dies and whatever their dice
say."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from fake_communicator import FakeCommunicator, run_world
from local_communicator import LocalCommunicator
from rounds_callback_host import MESSAGE, RoundsCallbackHost
from simulation import (
    STEPS,
    Ending,
    Launch,
    SimulatedAgent,
    SimulatedJob,
    TinyReplica,
    undisturbed_end,
    wait_for_nothing,
)

from holdfast.recovery.ledger import Cursor
from holdfast.recovery.step import Decision, Effects
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.system.activity import Activity
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.training.callback_host import CallbackHost, Notes
from holdfast.runtime.training.job_state import TrainingState, agree_on_effects

pytestmark = pytest.mark.usefixtures("one_core")
SEEDS = [
    *range(12),
    *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(12, 120)),
]
FAILS_IN = 6
USUAL = Effects(wants_stop=False, notes=b"n", state=b"s")
FIRSTS = {"of": 0}


@pytest.fixture(autouse=True)
def _waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_nothing(monkeypatch)


def alike(replica: TinyReplica, rank: int) -> RoundsCallbackHost:
    return RoundsCallbackHost(replica)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ending:
    terms = Launch(1, 1, 6, callback_host=alike)
    return undisturbed_end(tmp_path_factory.mktemp("one") / "run", terms)


@pytest.mark.parametrize("seed", SEEDS)
def test_rounds_end_with_the_same_bytes_through_deaths_and_relaunches(
    tmp_path: Path, undisturbed: Ending, seed: int
) -> None:
    dice = random.Random(seed)
    job = SimulatedJob(tmp_path / "run")
    workers = dice.randint(2, 5)
    for attempt in range(4):
        deaths = {} if attempt == 3 else deaths_of(dice, workers)
        terms = Launch(
            workers,
            workers,
            6,
            seed=seed,
            deaths=deaths,
            save_every=1 + seed % 3,
            callback_host=alike,
        )
        alive = [ending for ending in job.launch(terms) if ending is not None]
        assert len(set(alive)) <= 1, (seed, alive)
        if alive and alive[0].is_complete:
            assert alive[0] == undisturbed, seed
            return
    raise AssertionError(f"seed {seed}: the job did not complete")


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_whose_dice_differ_have_the_first_ones_effects(tmp_path: Path, seed: int) -> None:
    callback_hosts: dict[int, RoundsCallbackHost] = {}

    def dicing(replica: TinyReplica, rank: int) -> RoundsCallbackHost:
        callback_hosts[rank] = RoundsCallbackHost(
            replica, random.Random(1000 * seed + rank), odds=0.05
        )
        return callback_hosts[rank]

    dice = random.Random(seed)
    job = SimulatedJob(tmp_path / "run")
    deaths = deaths_of(dice, 3)
    endings = job.launch(Launch(4, 4, 6, seed=seed, deaths=deaths, callback_host=dicing))

    alive = [ending for ending in endings if ending is not None]
    assert alive
    assert len(set(alive)) == 1, seed
    tales = {
        str(callback_hosts[rank].memory) for rank, end in enumerate(endings) if end is not None
    }
    assert len(tales) == 1, seed
    assert {
        message for callback_host in callback_hosts.values() for message in callback_host.messages
    } == {MESSAGE}
    assert alive[0].step <= STEPS
    assert alive[0].is_complete


@pytest.mark.parametrize("seed", SEEDS)
def test_error_of_all_workers_ends_the_stage_at_one_state_whatever_dies(
    tmp_path: Path, seed: int
) -> None:
    callback_hosts: dict[int, RoundsCallbackHost] = {}

    def failing(replica: TinyReplica, rank: int) -> RoundsCallbackHost:
        callback_hosts[rank] = RoundsCallbackHost(replica, fails_in=FAILS_IN)
        return callback_hosts[rank]

    (whole,) = SimulatedJob(tmp_path / "one").launch(Launch(1, 1, 6, callback_host=failing))
    dice = random.Random(seed)
    job = SimulatedJob(tmp_path / "run")
    for deaths in (deaths_of(dice, 3), {}):  # the second launch comes to the error once more
        endings = job.launch(
            Launch(3, 3, 6, seed=seed, deaths=deaths, save_every=2, callback_host=failing)
        )
        alive = [rank for rank, ending in enumerate(endings) if ending is not None]

        assert {endings[rank] for rank in alive} == {whole}, seed
        assert whole is not None
        assert (0 < whole.step < STEPS, whole.is_complete) == (True, True)
        assert {str(callback_hosts[rank].error) for rank in alive} == {"no good trial"}
        assert {callback_hosts[rank].memory["rounds"] for rank in alive} == {FAILS_IN}


@pytest.mark.parametrize("mended_after", [1, 2], ids=["at once", "at a second start"])
def test_script_that_is_mended_goes_on_as_if_there_had_been_no_error(
    tmp_path: Path, undisturbed: Ending, mended_after: int
) -> None:
    job = SimulatedJob(tmp_path / "run")
    for _ in range(mended_after):
        failing = Launch(
            2,
            2,
            6,
            callback_host=lambda own, _: RoundsCallbackHost(own, fails_in=FAILS_IN),
            save_every=1,
        )
        job.launch(failing)

    mended = job.launch(Launch(2, 2, 6, callback_host=alike, save_every=1))

    assert set(mended) == {undisturbed}


@pytest.mark.parametrize("seed", SEEDS)
def test_worker_that_raises_alone_is_gone_and_the_others_go_on(
    tmp_path: Path, undisturbed: Ending, seed: int
) -> None:
    def one_fails(replica: TinyReplica, rank: int) -> RoundsCallbackHost:
        return RoundsCallbackHost(replica, fails_in=FAILS_IN if rank == seed % 3 else None)

    terms = Launch(3, 3, 6, seed=seed, callback_host=one_fails, dies_of=ValueError)
    endings = SimulatedJob(tmp_path / "run").launch(terms)

    assert endings[seed % 3] is None
    assert {ending for ending in endings if ending is not None} == {undisturbed}


class Watched(RoundsCallbackHost):
    """Notes whether its worker counts as waiting for its peers while the script's code runs."""

    def __init__(self, page: WorkerStatus) -> None:
        super().__init__(TinyReplica())
        self._page = page
        self.waited: list[bool] = []

    def lead(self, *, is_first: bool) -> None:
        self.waited.append(self._page.turn[1])
        super().lead(is_first=is_first)

    def decided(self, decision: Decision, message: bytes, notes: Notes | None) -> None:
        self.waited.append(self._page.turn[1])
        super().decided(decision, message, notes)


def test_slow_callback_of_a_peer_counts_as_waiting_and_an_own_one_does_not() -> None:
    """A callback may take minutes; workers that all wait for each other are killed."""
    page = WorkerStatus.create()
    page.begin_turn(waits_for_peers=True)
    page.enter(Activity.CALLBACKS)
    callback_host = Watched(page)
    world = World(1, (WorkerId(0),), 1)
    membership = Membership(WorkerId(0), world, LocalCommunicator(), clock=lambda: 0.0)

    agree_on_effects(membership, TrainingState(TinyReplica(), callback_host), Cursor.start(1), page)

    spent = {Activity(kind) for kind, nanoseconds in enumerate(page.spent_ns) if nanoseconds}
    assert spent == {Activity.CALLBACKS, Activity.WAIT}
    assert callback_host.waited == [False, False]
    assert page.turn[1]
    page.close()


def test_nobody_counts_as_waiting_while_graphs_are_traced_and_a_stage_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[WorkerStatus] = []
    waited: dict[str, set[bool]] = {"prepare": set(), "end": set()}

    class SlowReplica(TinyReplica):
        def prepare(self, batch: Microbatch) -> None:
            waited["prepare"].add(pages[0].turn[1])

    class SlowEnd(RoundsCallbackHost):
        def end(self) -> None:
            waited["end"].add(pages[0].turn[1])
            super().end()

    plain = SimulatedAgent.page

    def page(agent: SimulatedAgent) -> WorkerStatus:
        pages.append(plain(agent))
        return pages[-1]

    monkeypatch.setattr(SimulatedAgent, "page", page)
    terms = Launch(1, 1, 6, callback_host=lambda own, rank: SlowEnd(own), replica=SlowReplica)
    SimulatedJob(tmp_path / "run").launch(terms)

    assert waited == {"prepare": {False}, "end": {False}}


class Effective(CallbackHost):
    """A callback host whose round had these effects, and what it hears of the decision."""

    has_effects = True

    def __init__(self, rank: int, effects: Effects) -> None:
        self._rank = rank
        self._effects = effects
        self.heard: list[object] = []

    def lead(self, *, is_first: bool) -> None:
        self.heard.append(is_first)

    def effects(self) -> Effects:
        return self._effects

    def message(self) -> bytes:
        return b"from %d" % self._rank

    def notes(self) -> Notes:
        return {"of": self._rank}

    def decided(self, decision: Decision, message: bytes, notes: Notes | None) -> None:
        self.heard += [decision, message, notes]


@pytest.mark.parametrize(
    ("other", "decision", "notes", "weights"),
    [
        (USUAL, Decision(False, False, False), None, [0.0, 1.0, 2.0]),
        (Effects(True, b"n", b"s"), Decision(True, False, False), None, [0.0, 1.0, 2.0]),
        (Effects(False, b"m", b"s"), Decision(False, True, False), FIRSTS, [0.0, 1.0, 2.0]),
        (Effects(False, b"n", b"t"), Decision(False, False, True), FIRSTS, [0.0, 0.0, 0.0]),
    ],
    ids=["alike", "stop", "notes", "state"],
)
def test_what_differs_is_taken_from_the_first_worker(
    other: Effects, decision: Decision, notes: Notes | None, weights: list[float]
) -> None:
    world = World(1, tuple(map(WorkerId, range(3))), 3)

    def program(communicator: FakeCommunicator) -> tuple[list[object], float]:
        rank, replica, page = communicator.rank, TinyReplica(), WorkerStatus.create()
        replica.weights += np.float32(rank)
        callback_host = Effective(rank, other if rank == 2 else USUAL)
        membership = Membership(world.workers[rank], world, communicator, clock=lambda: 0.0)
        agree_on_effects(membership, TrainingState(replica, callback_host), Cursor.start(1), page)
        communicator.leave()
        page.close()
        return callback_host.heard, float(replica.weights[0])

    found = run_world(3, program)

    assert found == [
        ([rank == 0, decision, b"from 0", notes], weight) for rank, weight in enumerate(weights)
    ]


def deaths_of(dice: random.Random, most: int) -> dict[int, int]:
    """Kill some of the workers with the lowest ranks, at any moments."""
    victims = dice.sample(range(most), dice.randint(0, most - 1))
    return {victim: int(2 ** dice.uniform(2, 11)) for victim in victims}
