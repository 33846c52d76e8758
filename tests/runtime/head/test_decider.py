"""The job's machine between the events of an agent and the orders that it gets."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from heads import (
    COLD,
    ENDED,
    WARM,
    Decided,
    completed,
    exited,
    formed,
    job_of,
    joined,
    saved,
    stopped,
    without_screen,
)

from holdfast.recovery.event import (
    End,
    Event,
    Launch,
    LaunchEnded,
    LaunchPrepared,
    PreparationFailed,
    RunDirectoryLost,
)
from holdfast.recovery.schedule import FailureHistory
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head.orders import TimeLimit, TimeLimits
from holdfast.runtime.head.visits import Standing
from holdfast.runtime.host.host_messages import LaunchOrder, MpiOrder
from holdfast.runtime.run.checkpoint_events import CheckpointFailed
from holdfast.runtime.run.events import FaultStruck
from holdfast.runtime.run.progress import LaunchReport, StepReport
from holdfast.runtime.system.codec import to_plain

INT, TERM, USR2, HUP = signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP
LOST = [exited(0), exited(1), ENDED]
LAUNCH = Launch(4, (WorkerId(7), WorkerId(8)), relaunch=1, reason="lost", spent=1)


def decided(limits: TimeLimits | None = None, **options: Any) -> Decided:
    return Decided(job_of(limits, **options))


def code_of(made: Decided) -> ExitCode | None:
    return None if made.decider.end is None else made.decider.end.exit_code


def order_of(launch: Launch, **options: Any) -> LaunchOrder:
    job = job_of(**options)
    return job.order_of(launch)


def play(made: Decided, *happens: Event | signal.Signals | bool) -> Decided:
    """Begin the job; let it hear events and signals, and a person who stops it, at once if True."""
    made.begin(WARM)
    for one in happens:
        match one:
            case bool():
                made.decider.stop(is_urgent=one)
            case signal.Signals():
                made.decider.take_signals([one])
            case _:
                made.hear(one)
    return made


BOTH, LEFT = joined(0, 1), [exited(0, is_clean=True), exited(1, is_clean=True), ENDED]
BATCH = {"limits": TimeLimits(is_batch=True)}
UNSTARTED = LaunchEnded("mpiexec started no worker: no slots")


@pytest.mark.parametrize(
    ("options", "happens", "kinds", "code", "said"),
    [
        ({}, [*BOTH, *completed(0, 1)], [], ExitCode.DONE, "completed step 9, state sha256 cafe"),
        (
            {},
            [*BOTH, *LOST, *joined(2, 3), *completed(2, 3)],
            ["launch"],
            ExitCode.DONE,
            "relaunching 2 workers (worker 0: signal SIGKILL, worker 1: signal SIGKILL)",
        ),
        (
            {"max_restarts": 1},
            [*BOTH, *LOST],
            [],
            ExitCode.RECOVERY_IMPOSSIBLE,
            "(the restart budget of 1 allows no other relaunch: ",
        ),
        ({}, [UNSTARTED], ["launch"], None, f"relaunching 2 workers ({UNSTARTED.reason})"),
        ({}, [*BOTH, exited(0)], [], None, "worker 0 died after step 3 (signal SIGKILL)"),
        ({"shrink": False}, [*BOTH, exited(0)], ["kill"], None, "and worlds do not shrink"),
        ({"workers": 1, "shrink": False}, [*joined(0), exited(0)], [], None, "worker 0 died"),
        ({}, [*BOTH, TERM, INT], ["stop", "kill"], None, "SIGINT: stopping at once"),
        (
            {},
            [*BOTH, TERM, *stopped(0, 1), *LEFT],
            ["stop"],
            ExitCode.STOPPED_EARLY,
            "SIGTERM: stopping at the next step with a checkpoint (again: at once)",
        ),
        (BATCH, [*BOTH, USR2, TERM], ["stop"], None, "SIGTERM: the job is stopping already"),
        ({}, [*BOTH, signal.SIGUSR1], [], None, ""),  # it asks for nothing
        ({}, [*BOTH, USR2], ["save"], None, ""),
        ({}, [*BOTH, HUP], [], None, "SIGHUP: the job goes on without its terminal"),
        ({}, [*BOTH, False], ["stop"], None, "holdfast stop: stopping at the next step"),
        ({}, [*BOTH, False, False], ["stop"], None, "holdfast stop: stopping at the next step"),
        ({}, [*BOTH, False, True], ["stop", "kill"], None, "holdfast stop --now: stopping at once"),
        ({}, [*BOTH, True], ["stop", "kill"], None, "holdfast stop --now: stopping at once"),
    ],
    ids=[
        "completes", "lost", "budget spent", "mpiexec fails", "others go on", "others would wait",
        "nobody waits", "two orders", "stopped", "warned again", "nothing", "save", "no terminal",
        "a person", "twice", "then at once", "at once",
    ],
)  # fmt: skip
def test_what_happens_is_answered_with_orders_and_a_sentence(
    options: dict[str, Any],
    happens: list[Event | signal.Signals | bool],
    kinds: list[str],
    code: ExitCode | None,
    said: str,
) -> None:
    options = {"limits": TimeLimits(), **options}

    made = play(decided(**options), *happens)

    assert made.kinds == ["launch", *kinds]
    assert code_of(made) == code
    assert said in made.said.decode()
    assert bool(said) == bool(made.said)
    assert not made.decider.limits.hit_limit  # cancelled: not ours to bring back


def test_launch_after_another_has_new_workers_and_the_account_of_the_job() -> None:
    made = play(decided(spares=1), *joined(0, 1, 2), exited(2), *LOST)

    first, again = made.launches
    assert (first.config.workers, again.config.workers) == ((0, 1, 2), (3, 4, 5))
    assert first.mpi == MpiOrder(Path("/opt/mpiexec"), "Open MPI", ulfm=True)
    assert (first.config.generation, first.relaunch, first.spent) == (1, 0, 0)
    assert (again.config.generation, again.relaunch, again.spent) == (4, 1, 2)
    assert made.run.events[0] == "launch"


def test_run_directory_is_looked_at_every_few_seconds_and_after_a_save_that_failed() -> None:
    made = play(decided(), *BOTH)

    for now in (100.0, 100.5, 104.5, 105.0):
        made.decider.poll(now, is_idle=False)
    assert made.run.checks == 2
    made.record(CheckpointFailed(5, "the disk is full"))

    assert made.run.checks == 3


def test_job_whose_directory_is_lost_ends_with_one_sentence() -> None:
    made = play(decided(), *BOTH)

    made.decider.lose_directory(
        RunDirectoryLost(ExitCode.RUN_DIRECTORY_BUSY, "/run belongs to run b now")
    )
    made.hear(*LOST)

    assert made.kinds == ["launch", "kill"]
    assert made.lines[-1] == "holdfast: error: /run belongs to run b now"
    assert made.decider.end == End(ExitCode.RUN_DIRECTORY_BUSY, "/run belongs to run b now")


@pytest.mark.parametrize(
    ("warmth", "bound_s", "why"),
    [
        ([WARM], 180, b"its workers have not all initialised MPI"),
        ([], 900, b"its warm process has not imported everything"),
        ([WARM, COLD], 900, b"its warm process has not imported everything"),
    ],
    ids=["warm", "cold", "replaced"],
)
def test_launch_that_does_not_begin_in_time_is_killed(
    warmth: list[Event], bound_s: int, why: bytes
) -> None:
    made = decided()
    made.begin(*warmth, *joined(0))

    made.poll(bound_s)
    assert made.kinds == ["launch"]
    made.poll(2, 101.0 + bound_s)

    assert made.kinds == ["launch", "kill"]
    assert why in made.said


def test_launch_that_is_killed_and_does_not_end_is_abandoned() -> None:
    made = decided()
    made.begin(WARM, *joined(0, 1))
    made.decider.stop(is_urgent=True)

    made.poll(120)
    assert made.kinds == ["launch", "stop", "kill"]
    made.poll(0, 221.0)

    assert made.kinds == ["launch", "stop", "kill", "abandon"]
    assert b"holdfast: giving the launch up: " in made.said


def test_launch_that_runs_has_no_bound_and_one_that_stops_has_that_of_the_user() -> None:
    made = decided(grace_s=30.0)
    made.begin(WARM, *joined(0, 1))
    made.poll(1000)
    assert made.kinds == ["launch"]

    made.decider.take_signals([TERM])
    made.poll(30, 1101.0)
    assert made.kinds == ["launch", "stop"]
    made.poll(2, 1132.0)

    assert made.kinds == ["launch", "stop", "kill"]


def shrunk() -> list[Event]:
    """Return the words of four workers that have saved until two are left."""
    return [WARM, *joined(0, 1, 2, 3), saved(3, 3), exited(0), exited(1), formed(2, 3), saved(3, 9)]


def look(made: Decided, at: float, step: int, steps: int = 10_000) -> None:
    """Let the decider look at a training after ``step`` of its ``steps``."""
    report = StepReport(at, step, steps, epoch=1, epochs=1, step_of_epoch=0, steps_per_epoch=1)
    made.decider.poll(at, is_idle=False, progress=report)


@pytest.mark.parametrize(
    ("regrow", "steps", "orders"),
    [
        ("auto", 10_000, ["launch", "prepare"]),
        ("auto", 15, ["launch"]),  # the end is near
        ("never", 10_000, ["launch"]),
    ],
)
def test_launch_that_has_lost_workers_grows_again_if_it_pays(
    regrow: str, steps: int, orders: list[str]
) -> None:
    made = decided(workers=4, regrow=regrow)
    made.begin(*shrunk())

    for second in range(3):
        look(made, 100.0 + second, 10 + second, steps)

    assert made.kinds == orders


def test_prepared_launch_takes_the_place_of_one_that_has_stopped() -> None:
    made = decided(workers=4)
    made.begin(*shrunk())
    for second in range(3):
        look(made, 100.0 + second, 10 + second)

    made.hear(LaunchPrepared(5), *stopped(2, 3))
    made.hear(exited(2, is_clean=True), exited(3, is_clean=True), ENDED)

    assert made.kinds == ["launch", "prepare", "renew", "launch"]
    assert made.launches[-1].config.workers == (4, 5, 6, 7)
    assert any("2 of 4 workers are left: stopping" in line for line in made.lines)


def test_size_that_cannot_be_prepared_is_tried_ever_later() -> None:
    made = decided(workers=4)
    made.begin(*shrunk())
    assert made.decider.scale(1) == ""

    tried: list[float] = []
    for look_at in range(400):
        look(made, 100.0 + look_at / 2, 10 + look_at)
        if made.kinds[-1] == "prepare" and made.kinds.count("prepare") > len(tried):
            tried.append(look_at / 2)
            order = made.orders[-1]
            assert isinstance(order, LaunchOrder)
            made.hear(PreparationFailed(order.config.generation, "no space left"))

    assert tried == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0]


def test_job_that_is_short_of_time_does_not_grow() -> None:
    now = time.time()
    made = decided(TimeLimits(TimeLimit(now - 3600.0, now + 200.0, "squeue")), workers=4)
    made.begin(*shrunk())

    for second in range(3):
        look(made, 100.0 + second, 10 + second)

    assert made.kinds == ["launch"]
    assert made.decider.scale(2) == "its time is nearly up, and no other launch follows"


def limited(left_s: float) -> TimeLimits:
    """Return the limits of a batch job of an hour that has so much left."""
    now = time.time()
    return TimeLimits(TimeLimit(now - 3600.0, now + left_s, "squeue"), is_batch=True)


@pytest.mark.parametrize(
    ("left_s", "orders_before", "orders", "events"),
    [
        (20.0, [], ["stop"], ["deadline"]),
        (20.0, ["stop"], ["stop"], ["deadline"]),
        (5.0, ["stop"], ["stop", "kill"], ["deadline"]),
        (5.0, [], ["stop", "kill"], ["deadline"]),
        (5.0, ["stop", "kill"], ["stop", "kill"], ["deadline"]),
        (900.0, [], [], []),
    ],
    ids=[
        "the moment to save", "it saves already", "the last moment", "the first was missed",
        "it is being killed", "there is time",
    ],
)  # fmt: skip
def test_time_of_the_job_asks_once_to_save_and_twice_to_end(
    left_s: float, orders_before: list[str], orders: list[str], events: list[str]
) -> None:
    made = decided(limited(left_s))
    made.begin(WARM, *joined(0, 1))
    if orders_before:
        made.decider.stop(is_urgent="kill" in orders_before)

    made.decider.poll(100.0, is_idle=False)
    made.decider.poll(101.0, is_idle=False)

    assert made.kinds == ["launch", *orders]
    assert [event for event in made.run.events if event == "deadline"] == events
    # What a person has stopped does not come back by itself.
    assert made.decider.limits.hit_limit is (bool(events) and not orders_before)


def test_stop_by_a_person_after_a_limit_keeps_the_job_from_coming_back() -> None:
    made = decided(limited(20.0))
    made.begin(WARM, *joined(0, 1))
    made.decider.poll(100.0, is_idle=False)
    assert made.decider.limits.hit_limit

    made.decider.stop(is_urgent=False)

    assert not made.decider.limits.hit_limit
    assert made.kinds == ["launch", "stop"]


@pytest.mark.parametrize(
    ("phase", "left_s", "lines"),
    [("training", 20.0, 1), ("concluding", 20.0, 0), ("concluding", 5.0, 1)],
)
def test_saving_in_time_is_not_told_of_when_the_training_is_over(
    phase: str, left_s: float, lines: int
) -> None:
    progress = without_screen()
    made = Decided(job_of(limited(left_s)), progress)
    made.begin(WARM, *joined(0, 1))
    progress.show(LaunchReport(living=1, phase=phase))

    made.decider.poll(100.0, is_idle=False)

    assert len([line for line in made.lines if "time of the job" in line]) == lines


@pytest.mark.parametrize(
    ("struck", "told", "lines"),
    [
        ((), (), 2),
        (((1, 3, "compute", 1),), (), 1),
        ((), (FaultStruck("kill", 1, 3, "compute"),), 1),
    ],
    ids=["none struck", "struck in an earlier job", "struck now"],
)
def test_fault_that_never_struck_is_told_at_the_end(
    struck: tuple[object, ...], told: tuple[Event, ...], lines: int
) -> None:
    made = decided(faults=("kill worker=1 step=3", "kill worker=7 step=3"), struck=struck)
    made.begin(WARM, *joined(0, 1))

    made.record(*told)
    made.hear(*completed(0, 1))

    missed = [line for line in made.lines if "never struck" in line]
    assert len(missed) == lines
    assert missed[-1] == (
        "holdfast: --inject 'kill worker=7 step=3 site=compute attempt=1' never struck: worker 7 "
        "never came there. The workers of a first launch are 0 to 1, and of a launch that fills "
        "places later ones (--regrow never fills none)"
    )


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"max_restarts": 3}, [2, 1]),
        ({"max_restarts": 1}, [1, 1]),
        ({"max_restarts": 3, "shrink": False}, [2, 0]),
    ],
    ids=["with relaunches left", "with none left", "where each death is a relaunch"],
)
def test_random_faults_never_cost_the_last_relaunch(
    options: dict[str, Any], counts: list[int]
) -> None:
    made = decided(faults=("random seed=1 count=5",), **options)

    made.begin(WARM, *joined(0, 1), *LOST)

    told = [order.config.options.faults for order in made.launches]
    assert [len(faults) for faults in told] == counts[: len(told)]


def test_random_faults_that_have_struck_are_not_told_again_and_the_others_counted() -> None:
    text = "random seed=1 count=5"
    made = decided(faults=(text,))
    made.begin(WARM, *joined(0, 1))
    first = made.launches[0].config.options.faults[0]

    _, worker, step, site, attempt = (word.rpartition("=")[2] for word in first.split())
    made.record(FaultStruck("kill", int(worker), int(step), site, int(attempt)))
    made.hear(*LOST)
    again = made.launches[-1].config.options.faults
    made.hear(*joined(2, 3), *completed(2, 3))

    assert {word for text in again for word in text.split()}.isdisjoint({f"step={step}"})
    (missed,) = [line for line in made.lines if "--inject" in line]
    assert missed.startswith(f"holdfast: --inject '{text} steps=100' struck 1 of 5 times: ")
    assert missed.endswith("too much (--max-restarts 10 allows all)")


def test_faults_of_a_job_that_failed_cost_no_word() -> None:
    made = decided(faults=("kill worker=7 step=3",), max_restarts=0)

    made.begin(WARM, *joined(0, 1), *LOST)

    assert b"never struck" not in made.said


UP = Standing(is_up=True)


def follow(made: Decided, order: LaunchOrder, reason: str = "", standing: Standing = UP) -> None:
    """Go on after another head; the end of its launch comes as an event."""
    made.decider.go_on(replace(standing, order=to_plain(order)), reason)
    made.hear(ENDED)


def test_head_that_follows_knows_the_history_that_the_last_launch_was_told() -> None:
    made, order = decided(), order_of(LAUNCH)
    history = FailureHistory(60.0, 2, (7,))

    follow(made, replace(order, config=replace(order.config, history=history)))

    told = made.launches[0].config.history
    assert (told.failures, told.rejected) == (2, (7,))
    assert told.seconds >= 60.0


@pytest.mark.parametrize(
    ("max_restarts", "standing", "code"),
    [
        (2, UP, ExitCode.RECOVERY_IMPOSSIBLE),
        (2, Standing(is_up=True, saved_step=40), None),  # what it saved pays a relaunch back
        (3, Standing(), None),
    ],
)
def test_budget_goes_on_from_the_head_before(
    max_restarts: int, standing: Standing, code: ExitCode | None
) -> None:
    made = decided(max_restarts=max_restarts)

    follow(made, order_of(LAUNCH), standing=standing)

    assert code_of(made) == code
    assert len(made.launches) == (code is None)
