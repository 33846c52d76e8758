"""A launch is prepared beside one that has lost workers, and takes its place if it pays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.errors import ExitCode
from holdfast.recovery.event import (
    CheckpointCommitted,
    Command,
    End,
    HostBack,
    HostLost,
    Launch,
    LaunchEnded,
    LaunchOverdue,
    LaunchPrepared,
    LaunchWanted,
    PreparationFailed,
    Prepare,
    ScaleAsked,
    StopAsked,
    TimeIsShort,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.job import JobMachine, JobTerms
from holdfast.recovery.regrow import LEAST_GAIN, LEAST_SEEN_S, Pace, Regrowth
from holdfast.recovery.world import WorkerId


def running(workers: int = 4, *, spares: int = 0, can_shrink: bool = True) -> JobMachine:
    """Return the machine of a job whose first launch is up."""
    machine = JobMachine(JobTerms(workers, 3, can_shrink, spares=spares))
    (launch,) = machine.start()
    join(machine, launch)
    return machine


def join(machine: JobMachine, launch: Command) -> None:
    assert isinstance(launch, Launch)
    for worker in launch.workers:
        machine.handle(WorkerJoined(worker))
    machine.handle(WorldFormed(launch.generation, launch.workers, 0))


def saves(machine: JobMachine, count: int, first: int = 1) -> tuple[Command, ...]:
    """Return the answer to the last of ``count`` checkpoints of the newest world."""
    answer: tuple[Command, ...] = ()
    for step in range(first, first + count):
        answer = machine.handle(CheckpointCommitted(machine.view.world[0], step))
    return answer


def shrinks(machine: JobMachine, left: int) -> tuple[Command, ...]:
    """Return the answer to the world of the ``left`` workers that outlive the others."""
    world = machine.view.world
    for worker in world[left:]:
        machine.handle(WorkerExited(worker, is_clean=False, cause="signal SIGKILL"))
    return machine.handle(WorldFormed(machine.view.generation + 1, world[:left], 9))


def grows(machine: JobMachine, prepared: list[Launch]) -> tuple[Command, ...]:
    """Return the answer to the wish for a launch of all workers."""
    answer = machine.handle(LaunchWanted("it pays"))
    prepared += [command.launch for command in answer if isinstance(command, Prepare)]
    return answer


def stops(machine: JobMachine) -> tuple[Command, ...]:
    """Return the answer to the end of a launch whose workers have all stopped."""
    for worker in machine.view.world:
        machine.handle(WorkerStopped(worker, 10))
        machine.handle(WorkerExited(worker, is_clean=True, cause="exit 75"))
    return machine.handle(LaunchEnded())


def dies_whole(machine: JobMachine) -> tuple[Command, ...]:
    """Return what follows the deaths of all workers."""
    for worker in machine.view.world:
        machine.handle(WorkerExited(worker, is_clean=False, cause="signal SIGKILL"))
    return machine.handle(LaunchEnded())


def completes(machine: JobMachine, workers: int) -> tuple[Command, ...]:
    """Return the answer to the first workers, who have completed the training."""
    answer: tuple[Command, ...] = ()
    for worker in machine.view.world[:workers]:
        answer = machine.handle(WorkerCompleted(worker, 3, "cafe", is_first=worker == 0))
    return answer


def told(commands: tuple[Command, ...]) -> str:
    """Return an answer in a few words; a launch with its workers and what is spent."""

    def word(command: Command) -> str:
        match command:
            case Launch(_, workers, _, _):
                kind = "renewed" if command.is_renewal else "launch"
                return f"{kind}/{len(workers)}/{command.spent}"
            case End(exit_code, _, _):
                return f"end/{int(exit_code)}"
        return type(command).__name__

    return "+".join(map(word, commands)) or "-"


TRANSCRIPTS = {
    "a prepared launch takes the place of one that has saved, and costs nothing": (
        "saves:1 grows=Prepare ready=Renew stops=renewed/4/0"
    ),
    "again and again": " ".join(["saves:1 grows=Prepare ready=Renew stops=renewed/4/0"] * 5),
    # Its disk may be full: then its workers could not stop, but they can train.
    "one that has not saved is asked for a checkpoint, and not to stop": (
        "grows=Prepare+AskToSave ready=- saves:1=Renew stops=renewed/4/0"
    ),
    "nor if its world has not": (
        "saves:3 shrinks:1=- grows=Prepare+AskToSave ready=- saves:1=Renew stops=renewed/4/0"
    ),
    "a world that forms meanwhile has to save, too": (
        "saves:1 grows=Prepare shrinks:2=AskToSave ready=- saves:1=Renew"
    ),
    "it is asked for once": "saves:1 grows=Prepare ready=Renew saves:20=- grows=-",
    "no two are prepared": "saves:1 grows=Prepare grows=-",
    "one that cannot be prepared changes nothing": (
        "saves:1 grows=Prepare lost=- saves:3=- grows=Prepare ready=Renew"
    ),
    "one that is lost while the other stops is followed by another": (
        "saves:1 grows=Prepare ready=Renew lost=- stops=launch/4/0"
    ),
    "none just before the end of the time": "saves:3 short grows=- saves:20=-",
    "one that is prepared by then is dropped": "saves:3 grows short=DropPrepared ready=-",
    "a user who stops it stops the job": "saves:3 grows ready=Renew stop=AskToStop stops=end/75",
    "a job that is stopping has none": "saves:3 grows stop=DropPrepared+AskToStop ready=- grows=-",
    "a training that completes meanwhile is complete": (
        "saves:3 grows ready=Renew completes:1 leaves=end/0"
    ),
    "one that is lost meanwhile is charged": "saves:2 grows ready=Renew saves:10 dies=launch/4/1",
    "one that is lost before it has made room is charged": "saves:1 grows dies=launch/4/1 ready=-",
    # Else a job of months, which grows now and then, would end by the number of losses.
    "a launch in place of another pays earlier losses back": (
        "saves:1 dies=launch/4/1 saves:3 grows ready=Renew stops=renewed/4/0"
    ),
    "one that does not get on is followed by one of the size that did": (
        "saves:3 shrinks:1 grows saves:1 ready=Renew stops=renewed/4/0 dies=launch/1/2"
    ),
    # The workers would have trained on, had they not been asked to make room.
    "a last checkpoint that fails is no end": "saves:3 grows ready fails dies=launch/4/1",
    "a later training grows as the first does": "saves:3 completes:4 saves:1 grows ready=Renew",
    "a user scales it up": "saves:1 scale:6=- grows=Prepare ready=Renew stops=renewed/6/0",
    "and down": "saves:1 scale:1=- grows=Prepare ready=Renew stops=renewed/1/0 dies=launch/1/2",
    "one of another size is dropped": "saves:1 grows scale:6=DropPrepared grows=Prepare",
    "a wish that comes too late for it is kept": (
        "saves:1 grows ready=Renew scale:6=- stops=renewed/4/0 saves:1 grows ready=Renew "
        "stops=renewed/6/0"
    ),
    "no budget is spent on those that made room and did not leave": (
        "saves:1 grows ready=Renew overdue=KillLaunch stops=launch/4/0"
    ),
}
"""What happens to a job of four workers, and what is answered after ``=``."""


def leaves(machine: JobMachine) -> tuple[Command, ...]:
    """Return the answer to the end of a launch whose last worker has completed."""
    machine.handle(WorkerExited(machine.view.world[0], is_clean=True, cause="exit 0"))
    return machine.handle(LaunchEnded())


def fails(machine: JobMachine) -> tuple[Command, ...]:
    """Let all workers say that their last checkpoint was not written."""
    for worker in machine.view.world:
        error = WorkerFailed(worker, "StoppedEarly", "full", "", ExitCode.STOPPED_EARLY)
        machine.handle(error)
    return ()


def happen(
    machine: JobMachine, prepared: list[Launch], name: str, count: int
) -> tuple[Command, ...]:
    """Let something happen; return the last answer."""
    step = 10 + machine.view.checkpoints + 100 * machine.view.generation
    ways: dict[str, Callable[[], tuple[Command, ...]]] = {
        "saves": lambda: saves(machine, count, first=step),
        "shrinks": lambda: shrinks(machine, count),
        "grows": lambda: grows(machine, prepared),
        "ready": lambda: machine.handle(LaunchPrepared(prepared[-1].generation)),
        "lost": lambda: machine.handle(PreparationFailed(prepared[-1].generation, "killed")),
        "scale": lambda: machine.handle(ScaleAsked(count)),
        "completes": lambda: completes(machine, count),
        "overdue": lambda: machine.handle(LaunchOverdue("they do not leave")),
        "short": lambda: machine.handle(TimeIsShort()),
        "stop": lambda: machine.handle(StopAsked(ExitCode.INTERRUPTED)),
        "stops": lambda: stops(machine),
        "leaves": lambda: leaves(machine),
        "dies": lambda: dies_whole(machine),
        "fails": lambda: fails(machine),
    }
    return ways[name]()


@pytest.mark.parametrize("words", TRANSCRIPTS.values(), ids=TRANSCRIPTS.keys())
def test_transcript(words: str) -> None:
    machine, prepared = running(), list[Launch]()

    for word in words.split():
        event, _, expected = word.partition("=")
        name, _, count = event.partition(":")
        answer = happen(machine, prepared, name, int(count or 0))
        assert not expected or told(answer) == expected, word
        for launch in answer:
            if isinstance(launch, Launch):
                join(machine, launch)


def test_late_word_of_a_dead_worker_is_no_checkpoint_of_the_rest() -> None:
    machine, prepared = running(), list[Launch]()
    saves(machine, 3)
    shrinks(machine, 1)
    happen(machine, prepared, "grows", 0)
    happen(machine, prepared, "ready", 0)

    assert machine.handle(CheckpointCommitted(WorkerId(3), 9)) == ()


def test_script_that_goes_on_after_its_last_training_is_left_alone() -> None:
    machine = running()
    saves(machine, 3)
    machine.handle(WorkerCompleted(machine.view.world[0], 10, "cafe", is_first=True))

    assert machine.handle(LaunchWanted("it pays")) == ()


def test_no_worker_of_a_launch_that_was_prepared_in_vain_is_one_of_a_later_launch() -> None:
    machine, prepared = running(), list[Launch]()
    saves(machine, 1)
    happen(machine, prepared, "grows", 0)
    happen(machine, prepared, "lost", 0)
    (launch,) = dies_whole(machine)

    assert isinstance(launch, Launch)
    assert launch.workers == (8, 9, 10, 11)
    assert launch.generation >= prepared[0].generation + len(prepared[0].workers)


@pytest.mark.parametrize(("asked", "slots"), [(3, 4), (6, 3), (3, 3)])
def test_size_that_a_job_has_or_cannot_have_just_now_is_no_reason_for_a_launch(
    asked: int, slots: int
) -> None:
    machine = running(3)
    machine.handle(ScaleAsked(asked))
    machine.handle(HostLost("b", "no answer", (), slots=slots))

    assert not machine.is_rescaled
    shrinks(machine, 2)
    assert machine.is_rescaled == (asked > 3)
    machine.handle(HostBack("b", slots=8))
    assert machine.is_rescaled == (asked > 3)


def test_launch_that_has_grown_from_one_worker_ends_with_a_death_if_worlds_do_not_shrink() -> None:
    machine, prepared = running(1, can_shrink=False), list[Launch]()
    saves(machine, 1)
    for name, count in (("scale", 3), ("grows", 0), ("ready", 0)):
        happen(machine, prepared, name, count)
    (launch,) = stops(machine)
    join(machine, launch)

    dead = WorkerExited(machine.view.world[1], is_clean=False, cause="signal SIGKILL")

    assert told(machine.handle(dead)) == "KillLaunch"


def test_size_counts_no_spares() -> None:
    machine = running(4, spares=2)

    assert machine.active == (2, 2)
    shrinks(machine, 1)
    assert machine.active == (1, 2)


def trains(known: Regrowth, workers: int, step_s: float, *, at: float = 0.0) -> Regrowth:
    """Return what is known after a while of a world of so many workers."""
    known = known.formed(at, is_loss=False)
    for step in range(int(LEAST_SEEN_S / step_s) + 2):
        known = known.seen(Pace(step, 0, at + step * step_s), workers)
    return known


@given(
    st.integers(1, 64),
    st.integers(1, 64),
    st.floats(0.01, 10.0),
    st.integers(0, 100_000),
    st.floats(0.1, 60.0),
)
def test_launch_pays_exactly_if_the_time_it_saves_is_worth_its_pause(
    workers: int, possible: int, step_s: float, left: int, cost_s: float
) -> None:
    known = trains(Regrowth(cost_s=cost_s), workers, step_s)

    pays = known.pays(Pace(0, left, 100.0) if left else Pace(5, 5, 100.0), workers, possible)

    took_s = known.steps_s[workers]
    saved_s = left * took_s * (possible - workers) / possible
    if abs(saved_s - LEAST_GAIN * cost_s) > 1e-6 * cost_s:
        assert pays == (saved_s >= LEAST_GAIN * cost_s)


def test_speed_that_was_seen_counts_and_not_the_hope() -> None:
    known = trains(trains(Regrowth(), 4, 0.1), 2, 0.1, at=10.0)

    assert not known.pays(Pace(0, 100_000, 20.0), 2, 4)
    assert known.pays(Pace(0, 100_000, 20.0), 2, 8)


def test_training_without_a_known_end_is_long() -> None:
    assert trains(Regrowth(), 2, 0.1).pays(Pace(50, 0, 10.0), 2, 4)


def test_nothing_pays_while_no_speed_is_known() -> None:
    known = Regrowth().formed(0.0, is_loss=True).seen(Pace(3, 0, 1.0), 2)

    assert not known.pays(Pace(3, 0, 1000.0), 2, 4)


def test_pause_is_measured_and_a_place_that_kills_again_is_filled_ever_later() -> None:
    known, now, waits = trains(Regrowth(), 2, 0.1), 100.0, []
    for _ in range(4):
        known = known.made_room(now).formed(now + 1.0, is_loss=False)
        known = known.seen(Pace(50, 0, now + 1.0), 4).seen(Pace(51, 0, now + 1.5), 4)
        assert known.cost_s == pytest.approx(1.5)
        known = trains(known.formed(now + 2.0, is_loss=True), 2, 9.0, at=now + 2.0)
        waits.append(known.quiet_until - now)
        now = known.quiet_until - 1.0
        assert not known.pays(Pace(60, 0, now), 2, 4)

    assert waits == sorted(waits)
    assert waits[-1] > 7 * waits[0]


def test_launch_that_outlives_its_quiet_time_makes_it_short_again() -> None:
    known = Regrowth().failed(0.0).failed(1.0)

    assert known.quiet_factor == 4.0
    assert known.made_room(known.quiet_until).quiet_factor == 1.0
