"""What the head says to a job's user, and what its journal keeps, event by event."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from heads import Run, completed, exited, formed, job_of, without_screen

from holdfast.recovery.event import (
    End,
    Event,
    HostBack,
    Launch,
    WorkerCompleted,
    WorkerFailed,
    WorkInHand,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head import console
from holdfast.runtime.head.console import JobConsole
from holdfast.runtime.host.host_messages import LaunchOrder
from holdfast.runtime.run import events
from holdfast.runtime.run.entries import Entry
from holdfast.runtime.run.events import (
    AgentKilled,
    FaultStruck,
    HeadFailed,
    Notice,
    OutputDropped,
    Paused,
    PoolRestarted,
    PoolWarmed,
    PreloadFailed,
    Recovery,
    Relaunch,
    Step,
    TakenOver,
    Warned,
    WorkerFenced,
)

TWO = (WorkerId(0), WorkerId(1))
LAUNCH = Launch(4, (WorkerId(7), WorkerId(8)), 1, "taken over", 2)
TRACE = "Traceback: here\n"
WORK = WorkInHand(8, 3, 2, (5, 17), is_validation=False)
Say = Callable[[JobConsole], None]


class Told:
    """A console of a job, and what it has said and recorded."""

    def __init__(self, **how: Any) -> None:
        self.run = Run()
        self._written = b""
        self.voice = JobConsole(job_of(**how), self.run, self._take, without_screen())

    def lines(self) -> list[str]:
        """Return what was said since the last time, without the name in front."""
        lines, self._written = self._written.decode().splitlines(), b""
        return [line.removeprefix("holdfast: ") for line in lines]

    def _take(self, lines: bytes) -> None:
        self._written += lines

    def hear(self, *events: Event) -> None:
        for event in events:
            self.voice.show(event)


def raised(worker: int, message: str = "odd", trace: str = TRACE, where: str = "") -> list[Event]:
    """Return the words of a worker whose script raises, as its launch passes them on."""
    failed = WorkerFailed(WorkerId(worker), "ValueError", message, trace, ExitCode.PROGRAM_FAILED)
    end = exited(worker, cause=f"ValueError: {message}", traceback=trace, where=where)
    return [failed, end]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.mark.parametrize(
    ("begun", "worlds", "is_told"),
    [
        (12, (), True),
        (12, (4, 12), True),  # two trainings, and both were complete
        (12, (8,), False),  # step 12 is damaged
        (8, (8,), False),
        (None, (0,), False),
    ],
)
def test_run_that_was_complete_says_how_to_go_on(
    begun: int | None, worlds: tuple[int, ...], *, is_told: bool
) -> None:
    told = Told(saved_step=begun)
    told.hear(*(formed(0, step=step) for step in worlds))
    told.hear(WorkerCompleted(WorkerId(0), 12, "ab"))
    told.lines()

    told.voice.ended(End(ExitCode.DONE, "completed step 12"))

    line = (
        "this run was complete already (step 12), and nothing was trained: to train on, "
        "ask for more epochs in the script; to begin a new run, give --fresh"
    )
    assert told.lines()[1:] == [line] * is_told


HOST = "it has not answered for 2.0 s"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (exited(2, step=30), "worker 2 died after step 30 (signal SIGKILL)"),
        (HostBack("b", 4), "host b is back, and takes workers of the next launch"),
        (Warned("the disk\n is slow"), "the disk is slow"),
        (PoolRestarted("signal SIGKILL"), ""),
        (OutputDropped(3), ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Event) else "",
)
def test_event_is_told_in_its_sentence_and_recorded_as_it_is(
    told: Told, event: Event, line: str
) -> None:
    told.hear(event)

    assert told.lines() == [line] * bool(line)
    assert told.run.records == [event]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            WorkerFenced(WorkerId(4), "heartbeat", 10.04, 7),
            "worker 4 has been silent for 10.0 s after step 7: killing it",
        ),
        (
            WorkerFenced(WorkerId(4), "stall", 600.04, 7, "f (train.py:42)", WORK),
            "worker 4 has kept the others waiting for 600.0 s after step 7, in f (train.py:42), "
            "with microbatch 3 of step 8: killing it",
        ),
        (PoolWarmed(), ""),
        (exited(2, is_clean=True), ""),
        (formed(0, 1), ""),
    ],
    ids=["silent", "stalled", "warm", "left", "world"],
)
def test_what_others_record_is_only_said(told: Told, event: Event, line: str) -> None:
    told.hear(event)

    assert told.lines() == [line] * bool(line)
    assert told.run.records == []


def test_workers_of_a_lost_host_have_no_lines_of_their_own(told: Told) -> None:
    deaths = [exited(w, cause=f"host b was lost: {HOST}", limit="host", host="b") for w in (2, 3)]

    told.hear(*deaths)

    assert told.lines() == []
    assert told.run.records == deaths


def test_error_of_one_worker_is_told_with_its_place_when_the_others_go_on(told: Told) -> None:
    told.hear(*raised(2, "first\n    second", where="contribute (train.py:42)"))
    assert told.lines() == []

    told.hear(formed(0, 1), formed(0, 1))

    line = "worker 2 died after step 3 (ValueError: first second), in contribute (train.py:42)"
    assert told.lines() == [line, TRACE.strip()]


def test_error_of_all_workers_is_told_once_as_the_end(told: Told) -> None:
    for worker in range(3):
        told.hear(*raised(worker))

    told.voice.ended(End(ExitCode.PROGRAM_FAILED, "ValueError: odd", TRACE))

    assert told.lines() == [TRACE.strip(), "error: ValueError: odd"]
    assert told.run.events == ["failure"] * 3 + ["job_ended"]


def test_error_that_the_end_does_not_explain_is_told_before_it(told: Told) -> None:
    told.hear(*raised(2, trace=""))

    told.voice.ended(End(ExitCode.RECOVERY_IMPOSSIBLE, "the restart budget of 0 is spent"))

    line = "worker 2 died after step 3 (ValueError: odd)"
    assert told.lines() == [line, "error: the restart budget of 0 is spent"]


def test_exception_that_others_survive_is_shown_once_with_its_first_lines(told: Told) -> None:
    trace = "Traceback (most recent call last):\n" + "  File\n" * 20 + "ValueError: odd\n"
    told.hear(*raised(2, trace=trace), formed(0, 1))

    first, *lines = told.lines()
    assert first == "worker 2 died after step 3 (ValueError: odd)"
    assert lines == [*trace.splitlines()[:12], "  ..."]

    told.hear(*raised(1, trace=trace), formed(0, generation=3))

    assert told.lines() == ["worker 1 died after step 3 (ValueError: odd)"]


@pytest.mark.parametrize("is_verbose", [False, True])
def test_calls_of_holdfast_concern_only_who_asks(*, is_verbose: bool) -> None:
    own = f'  File "{Path(console.__file__).parents[1]}/keras/keras_fit.py", line 68, in _fit\n'
    told = Told(verbose=is_verbose)

    told.voice.ended(End(1, "ValueError: odd", f"Traceback:\n{own}ValueError: odd\n"))

    said = "\n".join(told.lines())
    assert ("keras_fit.py" in said) == is_verbose
    assert ("  [1 call of holdfast: -v shows more]" in said) != is_verbose


@pytest.mark.parametrize(
    ("code", "is_failure", "line"),
    [
        (0, False, "over"),
        (75, False, "over"),
        (75, True, "error: over"),
        (1, False, "error: over"),
        (70, False, "error: over"),
    ],
)
def test_end_is_an_error_unless_the_run_can_go_on_or_is_done(
    told: Told, code: int, line: str, *, is_failure: bool
) -> None:
    told.voice.ended(End(ExitCode(code), "over", is_failure=is_failure))

    assert told.lines() == [line]
    assert told.run.records == [events.JobEnded(code, "over")]


def test_first_launch_is_silent_and_a_relaunch_says_why(told: Told) -> None:
    told.voice.launching(Launch(1, TWO, 0, "the job begins"))
    assert told.lines() == []

    told.voice.launching(Launch(3, (WorkerId(2),), 1, "worker 1: signal SIGKILL", spent=2))

    assert told.lines() == ["relaunching 1 worker (worker 1: signal SIGKILL)"]
    assert told.run.records == [
        events.LaunchBegan(1, TWO, 0),
        Relaunch("worker 1: signal SIGKILL", (2,), 2),
        events.LaunchBegan(3, (2,), 1),
    ]


def at(now: float, event: Event) -> Entry[Any]:
    return Entry(event, now, 0.0)


DIED, RECOVERED = (
    at(10.0, exited(2)),
    at(10.041, Recovery(2, 20, (2,), (0, 1, 3), next_step_ms=40.0)),
)
ALONE = at(10.041, Recovery(2, 20, (2,), (3,), next_step_ms=40.0))
STRUCK = at(8.001, FaultStruck("kill", 2, 20, "compute"))
LAUNCHED, RELAUNCHED = at(5.0, events.LaunchBegan(1, (), 0)), at(10.5, Relaunch("lost", (), 1))
LATER, STEP = at(5.0, events.LaunchBegan(2, (), 1)), at(13.2, Step(121, 1, 0.5, 8, 1))
STEPS = at(75.0, Step(4, 1, 0.5, 8, 1, 4))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ((DIED, RECOVERED), ["recovered in 41 ms, 3 workers go on"]),
        ((RECOVERED, DIED), ["recovered in 41 ms, 3 workers go on"]),
        ((RECOVERED,), []),  # its death is told soon
        ((RECOVERED, LAUNCHED, DIED), []),
        ((STRUCK, DIED, RECOVERED), ["recovered in 2.0 s, 3 workers go on"]),
        ((DIED, ALONE), ["recovered in 41 ms, 1 worker goes on"]),
        (
            (DIED, RELAUNCHED, LAUNCHED, STEP, STEP),
            ["relaunched in 3.2 s, goes on from step 120"],
        ),
        ((DIED, RELAUNCHED, LAUNCHED, STEPS), ["relaunched in 1:05, goes on from step 0"]),
        ((DIED, RELAUNCHED, LATER, STEP), []),
        ((RELAUNCHED, LAUNCHED, STEP), ["relaunched in 2.7 s, goes on from step 120"]),
        ((LAUNCHED, STEP), []),
    ],
)
def test_death_is_followed_by_how_the_job_goes_on(
    told: Told, entries: tuple[Entry[Any], ...], said: list[str]
) -> None:
    for entry in entries:
        told.voice.follow(entry)

    assert told.lines() == said


def test_recovery_comes_after_the_error_that_its_worker_died_of(told: Told) -> None:
    told.hear(*raised(2, trace=""))

    told.voice.follow(DIED)
    told.voice.follow(RECOVERED)

    line = "worker 2 died after step 3 (ValueError: odd)"
    assert told.lines() == [line, "recovered in 41 ms, 3 workers go on"]


def test_completion_and_notices_of_several_workers_are_kept_and_told_once(told: Told) -> None:
    told.hear(*(event for event in completed(0, 1, 2) if event.NAME == "completed"))
    told.hear(Notice("disk full"), Notice("disk full"), Notice("disk slow"))

    assert told.run.events == ["completed"]
    assert told.lines() == ["disk full", "disk slow"]


def test_pause_of_the_whole_job_is_told_once_whoever_has_seen_it(told: Told) -> None:
    first, again, later = Paused(66.2, 166.2), Paused(67.3, 167.2), Paused(30.0, 230.0)

    told.hear(first, again, later)

    assert told.lines() == [
        "the job stood still for 66 s, and goes on",
        "the job stood still for 30 s, and goes on",
    ]
    assert told.run.records == [first, later]


KEPT = "the import of pyarrow leaves 2 threads running"


@pytest.mark.parametrize(
    ("how", "failed", "lines"),
    [
        ({}, [PreloadFailed("torch", "none")], []),
        ({"verbose": True}, [PreloadFailed("torch", "none")], ["torch is not preloaded: none"]),
        (
            {"preload": ("json", "tensorflw"), "missing_modules": ("tensorflw",)},
            [
                PreloadFailed("tensorflw", "none"),  # that was told when the job began
                PreloadFailed("json", "it keeps threads"),
                PreloadFailed("json", "it keeps threads"),
            ],
            ["json is not preloaded: it keeps threads"],
        ),
        (
            {"preload": ("tensorflow", "json")},
            [PreloadFailed(name, KEPT, "pyarrow") for name in ("tensorflow", "json")],
            [f"tensorflow is not preloaded: {KEPT}; each launch imports it anew"],
        ),
    ],
    ids=["nobody asked", "verbose", "named", "kept by a library"],
)
def test_module_that_is_not_preloaded_concerns_who_has_named_it(
    how: dict[str, Any], failed: list[PreloadFailed], lines: list[str]
) -> None:
    told = Told(**how)

    told.hear(*failed)

    assert told.lines() == lines
    recorded = {event.module for event in told.run.records if isinstance(event, PreloadFailed)}
    assert recorded == {event.module for event in failed} - {"tensorflw"}


def test_lost_output_is_said_once_at_the_end(told: Told) -> None:
    told.voice.lost_output()
    told.hear(OutputDropped(40), OutputDropped(260))
    assert told.lines() == []

    told.voice.lost_output()

    (line,) = told.lines()
    assert line.startswith("260 lines of the job's output were lost, because stdout")


def test_quiet_job_says_only_what_goes_wrong() -> None:
    told = Told(quiet=True)

    told.voice.launching(Launch(1, TWO, relaunch=1, reason="all died"))
    told.voice.ended(End(ExitCode.DONE, "completed step 5"))
    told.hear(Notice("2 workers train", is_progress=True))
    assert told.lines() == []

    told.hear(Notice("checkpoints are at risk"), exited(2))
    told.voice.ended(End(ExitCode.RECOVERY_IMPOSSIBLE, "the budget is spent"))

    assert told.lines() == [
        "checkpoints are at risk",
        "worker 2 died after step 3 (signal SIGKILL)",
        "error: the budget is spent",
    ]


@pytest.mark.parametrize(
    ("say", "line", "recorded"),
    [
        (
            lambda voice: voice.lost_head(LAUNCH, "it is silent"),
            "killed the agent of this host and its workers: it is silent",
            AgentKilled("it is silent"),
        ),
        (
            lambda voice: voice.abandoning("it does not end"),
            "giving the launch up: it does not end",
            AgentKilled("it does not end"),
        ),
        (
            lambda voice: voice.failed(ZeroDivisionError("by 0")),
            "error: the head failed (ZeroDivisionError: by 0); the workers go on, but are not "
            "relaunched if all die; report this with the lines above",
            HeadFailed("ZeroDivisionError: by 0"),
        ),
        (
            lambda voice: voice.attached(LaunchOrder(job_of().config)),
            "",
            TakenOver(os.getpid(), 1, (0, 1)),
        ),
        (
            lambda voice: voice.lost_head(LAUNCH, ""),
            "the agent of this host died, and its workers with it",
            None,
        ),
        (
            lambda voice: voice.stopping("SIGTERM", is_second=False),
            "SIGTERM: stopping at the next step with a checkpoint (again: at once)",
            None,
        ),
        (lambda voice: voice.stopping("SIGINT", is_second=True), "SIGINT: stopping at once", None),
    ],
)
def test_what_the_head_does_is_said_and_recorded(
    told: Told, say: Say, line: str, recorded: Event | None
) -> None:
    say(told.voice)

    assert told.lines() == [line] * bool(line)
    assert told.run.records == ([] if recorded is None else [recorded])


@pytest.mark.parametrize(
    ("code", "lines"),
    [(ExitCode.RECOVERY_IMPOSSIBLE, ["2 deaths: signal SIGKILL"]), (ExitCode.TERMINATED, [])],
)
def test_deaths_are_counted_at_the_end_of_a_job_that_they_have_ended(
    told: Told, code: ExitCode, lines: list[str]
) -> None:
    told.hear(exited(7, is_clean=True), exited(7), exited(8), exited(9, collateral=True))
    told.lines()

    told.voice.ended(End(code, "it is over"))

    assert told.lines() == ["error: it is over", *lines]
