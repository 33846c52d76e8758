"""A launch that has lost most of its workers makes room for one of all, if it gets on."""

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
    Launch,
    LaunchEnded,
    Renew,
    StopAsked,
    TimeIsShort,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.job import (
    CHECKPOINTS_BEFORE_A_RENEWAL,
    CHECKPOINTS_OF_A_SMALL_LAUNCH,
    JobMachine,
    JobTerms,
)
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


def wears(machine: JobMachine, left: int, step: int = 10) -> tuple[Command, ...]:
    """Return the answer to the checkpoint that the ``left`` workers make next."""
    shrinks(machine, left)
    return saves(machine, 1, first=step)


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
    # Its disk may be full: then its workers could not stop, but they can train.
    "one that cannot save is not asked to stop": "saves:3 shrinks:1=AskToSave",
    "none just before the end of the time": "saves:3 short shrinks:1=- saves:20=-",
    "nor if it was degraded before": "saves:3 shrinks:1=AskToSave short saves:20=-",
    "a worn launch is followed by one of all that costs nothing": (
        "saves:3 wears:1=Renew stops=renewed/4/0"
    ),
    "again and again": " ".join(["saves:3 wears:1=Renew stops=renewed/4/0"] * 5),
    "one that has not got on goes on small until it has": (
        f"saves:{CHECKPOINTS_BEFORE_A_RENEWAL - 1} shrinks:1=- "
        f"saves:{CHECKPOINTS_OF_A_SMALL_LAUNCH - 3}=- saves:1=Renew"
    ),
    "it is asked for once": "saves:3 wears:1=Renew saves:20=-",
    "a user who stops it stops the job": "saves:3 wears:1 stop stops=end/75",
    "a job that is stopping is not renewed": "saves:3 stop shrinks:1=- saves:1=-",
    "a training that completes meanwhile is complete": ("saves:3 wears:1 completes:1 leaves=end/0"),
    "one that is lost meanwhile is charged": "saves:2 wears:1 saves:10 dies=launch/4/1",
    # Else a job of months, which is renewed now and then, would end by the number of losses.
    "a renewed launch pays earlier losses back": (
        "saves:1 dies=launch/4/1 saves:3 wears:1=Renew stops=renewed/4/0"
    ),
    "one that does not get on is followed by one of the size that did": (
        "saves:3 wears:1 stops=renewed/4/0 dies=launch/1/2"
    ),
    # The workers would have trained on, had they not been asked to make room.
    "a last checkpoint that fails is no end": "saves:3 wears:1 fails dies=launch/4/1",
    "a later training is renewed as the first is": "saves:3 completes:4 wears:1=Renew",
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


def happen(machine: JobMachine, name: str, count: int) -> tuple[Command, ...]:
    """Let something happen; return the last answer."""
    step = 10 + machine.view.checkpoints + 100 * machine.view.generation
    ways: dict[str, Callable[[], tuple[Command, ...]]] = {
        "saves": lambda: saves(machine, count, first=step),
        "shrinks": lambda: shrinks(machine, count),
        "wears": lambda: wears(machine, count, step=step),
        "completes": lambda: completes(machine, count),
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
    machine = running()

    for word in words.split():
        event, _, expected = word.partition("=")
        name, _, count = event.partition(":")
        answer = happen(machine, name, int(count or 0))
        assert not expected or told(answer) == expected, word
        for launch in answer:
            if isinstance(launch, Launch):
                join(machine, launch)


def test_late_word_of_a_dead_worker_is_no_checkpoint_of_the_rest() -> None:
    machine = running()
    saves(machine, 3)
    shrinks(machine, 1)

    assert machine.handle(CheckpointCommitted(WorkerId(3), 9)) == ()


def test_script_that_goes_on_after_its_last_training_is_left_alone() -> None:
    machine = running()
    saves(machine, 3)
    shrinks(machine, 1)
    machine.handle(WorkerCompleted(machine.view.world[0], 10, "cafe", is_first=True))

    assert saves(machine, 1, first=10) == ()


def test_worlds_that_cannot_shrink_are_never_worn() -> None:
    machine = running(can_shrink=False)
    saves(machine, 3)

    machine.handle(WorldFormed(machine.view.generation + 1, machine.view.world[:1], 9))

    assert saves(machine, 20, first=10) == ()


@given(st.integers(2, 9), st.integers(0, 4), st.integers(0, 20), st.data())
def test_no_launch_is_renewed_that_has_half_of_its_workers_or_too_few_checkpoints(
    workers: int, spares: int, count: int, data: st.DataObject
) -> None:
    machine = running(workers + spares, spares=spares)
    saves(machine, count)
    left = data.draw(st.integers(1, workers + spares))

    answer = wears(machine, left, step=30)

    may = 2 * left < workers and count >= CHECKPOINTS_BEFORE_A_RENEWAL
    assert [type(command) for command in answer] == ([Renew] if may else [])
