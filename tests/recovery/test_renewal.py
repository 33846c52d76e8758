"""A launch that has lost most of its workers makes room for one of all, if it gets on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.errors import ExitCode
from holdfast.recovery.event import (
    AskToSave,
    CheckpointCommitted,
    Command,
    End,
    Event,
    Launch,
    LaunchEnded,
    LaunchRenewing,
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


def test_launch_that_cannot_save_is_not_asked_to_stop() -> None:
    """Its disk may be full: then its workers could not stop, but they can train."""
    machine = running()
    saves(machine, 3)

    (asked,) = shrinks(machine, 1)

    assert asked == AskToSave()
    assert not machine.view.is_renewing


@pytest.mark.parametrize("is_degraded_before", [False, True])
def test_launch_is_not_renewed_just_before_the_end_of_the_time(*, is_degraded_before: bool) -> None:
    machine = running()
    saves(machine, 3)

    if is_degraded_before:
        assert shrinks(machine, 1) == (AskToSave(),)
        machine.handle(TimeIsShort())
    else:
        machine.handle(TimeIsShort())
        assert shrinks(machine, 1) == ()

    assert saves(machine, CHECKPOINTS_OF_A_SMALL_LAUNCH, first=10) == ()
    assert not machine.view.is_renewing


def test_late_word_of_a_dead_worker_is_no_checkpoint_of_the_rest() -> None:
    machine = running()
    saves(machine, 3)
    shrinks(machine, 1)

    assert machine.handle(CheckpointCommitted(WorkerId(3), 9)) == ()


def test_worn_launch_is_followed_by_one_of_all_workers_that_costs_nothing() -> None:
    machine = running()
    saves(machine, 3)
    (renew,) = wears(machine, 1)

    (launch,) = stops(machine)

    assert renew == Renew("1 of 4 workers are left")
    assert isinstance(launch, Launch)
    assert (len(launch.workers), launch.spent, launch.is_renewal) == (4, 0, True)


def test_launch_can_be_renewed_for_ever() -> None:
    machine = running()
    for turn in range(20):
        saves(machine, 3, first=1 + 10 * turn)
        wears(machine, 1, step=9 + 10 * turn)
        (launch,) = stops(machine)
        join(machine, launch)
        assert isinstance(launch, Launch)
        assert launch.spent == 0


def test_launch_that_has_not_got_on_goes_on_small_until_it_has() -> None:
    machine = running()
    saves(machine, CHECKPOINTS_BEFORE_A_RENEWAL - 1)

    assert shrinks(machine, 1) == ()
    assert saves(machine, CHECKPOINTS_OF_A_SMALL_LAUNCH - 3, first=5) == ()
    assert [type(command) for command in saves(machine, 1, first=50)] == [Renew]


def test_renewal_is_asked_for_once() -> None:
    machine = running(5)
    saves(machine, 3)

    first, second = wears(machine, 2), wears(machine, 1, step=11)

    assert [type(command) for command in first] == [Renew]
    assert (second, saves(machine, 20, first=20)) == ((), ())


def test_user_who_stops_a_launch_that_makes_room_stops_the_job() -> None:
    machine = running()
    saves(machine, 3)
    wears(machine, 1)
    machine.handle(StopAsked(ExitCode.INTERRUPTED))

    (end,) = stops(machine)

    assert isinstance(end, End)
    assert end.exit_code == ExitCode.STOPPED_EARLY


def test_job_that_is_stopping_is_not_renewed() -> None:
    machine = running()
    saves(machine, 3)
    machine.handle(StopAsked(ExitCode.INTERRUPTED))

    assert (shrinks(machine, 1), saves(machine, 1, first=10)) == ((), ())


def test_training_that_completes_meanwhile_is_complete() -> None:
    machine = running()
    saves(machine, 3)
    wears(machine, 1)
    first = machine.view.world[0]
    machine.handle(WorkerCompleted(first, 20, "cafe", is_first=True))
    machine.handle(WorkerExited(first, is_clean=True, cause="exit 0"))

    (end,) = machine.handle(LaunchEnded())

    assert isinstance(end, End)
    assert end.exit_code == ExitCode.DONE


def test_launch_that_is_lost_while_it_makes_room_is_charged() -> None:
    machine = running()
    saves(machine, 1)
    saves(machine, 1, first=9)
    wears(machine, 1)
    saves(machine, 10, first=20)
    machine.handle(WorkerExited(machine.view.world[0], is_clean=False, cause="signal SIGKILL"))

    (launch,) = machine.handle(LaunchEnded())

    assert isinstance(launch, Launch)
    assert (len(launch.workers), launch.spent, launch.is_renewal) == (4, 1, False)


def dies_whole(machine: JobMachine) -> Command:
    """Return what follows the deaths of all workers."""
    for worker in machine.view.world:
        machine.handle(WorkerExited(worker, is_clean=False, cause="signal SIGKILL"))
    (command,) = machine.handle(LaunchEnded())
    return command


def test_renewed_launch_pays_earlier_losses_back() -> None:
    """Else a job of months, which is renewed now and then, would end by the number of losses."""
    machine = running()
    saves(machine, 1)
    launch = dies_whole(machine)
    join(machine, launch)
    assert isinstance(launch, Launch)
    assert launch.spent == 1
    saves(machine, 3, first=2)
    wears(machine, 1)

    (launch,) = stops(machine)

    assert isinstance(launch, Launch)
    assert (launch.spent, launch.is_renewal) == (0, True)


def test_renewal_that_does_not_get_on_is_followed_by_a_launch_of_the_size_that_did() -> None:
    machine = running()
    saves(machine, 3)
    wears(machine, 1)
    (launch,) = stops(machine)
    join(machine, launch)

    following = dies_whole(machine)

    assert isinstance(following, Launch)
    assert len(following.workers) == 1


def test_last_checkpoint_that_fails_is_no_end_of_a_job_that_nobody_has_stopped() -> None:
    """The workers would have trained on, had they not been asked to make room."""
    machine = running(5)
    saves(machine, 3)
    wears(machine, 2)
    for worker in machine.view.world:
        full = WorkerFailed(worker, "StoppedEarly", "full", "", ExitCode.STOPPED_EARLY)
        machine.handle(full)

    following = dies_whole(machine)

    assert isinstance(following, Launch)
    assert (len(following.workers), following.spent, following.is_renewal) == (5, 1, False)


def test_later_training_of_a_script_is_renewed_as_the_first_is() -> None:
    machine = running()
    saves(machine, 3)
    for worker in machine.view.world:
        machine.handle(WorkerCompleted(worker, 3, "cafe", is_first=worker == 0))

    answer = wears(machine, 1)

    assert [type(command) for command in answer] == [Renew]


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


def test_head_that_takes_over_goes_on_with_the_renewal() -> None:
    """It hears from the agent what the last one has asked for."""
    launch = Launch(1, tuple(map(WorkerId, range(4))), 0, "the job begins")
    machine = JobMachine(JobTerms(4, 3, can_shrink=True))
    machine.take_over(launch)
    join(machine, launch)
    told: list[Event] = [LaunchRenewing(WorkerId(0)), WorldFormed(4, (WorkerId(1),), 9)]
    for event in told:
        machine.handle(event)

    (following,) = stops(machine)

    assert isinstance(following, Launch)
    assert (len(following.workers), following.is_renewal) == (4, True)


def test_word_of_an_older_launch_renews_nothing() -> None:
    machine = running()
    for worker in machine.view.world:
        machine.handle(WorkerExited(worker, is_clean=False, cause="signal SIGKILL"))
    (launch,) = machine.handle(LaunchEnded())
    join(machine, launch)

    machine.handle(LaunchRenewing(WorkerId(0)))

    assert not machine.view.is_renewing


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
