"""What the head says to a job's user, and what its journal keeps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from heads import Run, exited, job_of, report

from holdfast.recovery.detector import Pause
from holdfast.recovery.event import End, Launch
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head import console
from holdfast.runtime.head.console import DeathLog, JobConsole
from holdfast.runtime.run.events import Deadline, HungUp, Renewing, Warned
from holdfast.runtime.run.journal import Record

DEATH = {
    "kind": "worker_exited",
    "worker": 2,
    "clean": False,
    "cause": "signal SIGKILL",
    "step": 30,
    "phase": "training",
    "fenced": False,
    "generation": 1,
}

_PART = ", with microbatch 3 of {}"

LAUNCH = Launch(4, (WorkerId(7), WorkerId(8)), 1, "taken over", 2)
ERROR = {"type": "ValueError", "message": "odd", "traceback": "Traceback: here\n"}
Say = Callable[[JobConsole], None]

SAMPLES = {"step": 8, "microbatch": 1, "count": 2, "ids": [5, 17], "is_validation": False}


class Told:
    """A console of a job, and what it has said and recorded."""

    def __init__(self, **how: Any) -> None:
        self.run = Run()
        self._written = b""
        self.voice = JobConsole(job_of(**how), self.run, self._take)

    def lines(self) -> list[str]:
        """Return what was said since the last time."""
        lines, self._written = self._written.decode().splitlines(), b""
        return lines

    def _take(self, lines: bytes) -> None:
        self._written += lines

    def records(self, event: str | None = None) -> list[Record]:
        """Return what was recorded so far."""
        return [record for record in self.run.records if event in (None, record["event"])]

    def report(self, worker: int, kind: str, **fields: Any) -> None:
        report = {"kind": kind, **fields}
        self.voice.heard({"kind": "worker_report", "worker": worker, "report": report})

    def error(self, worker: int, message: str = "the loss is not finite") -> None:
        self.report(worker, "error", type="ValueError", message=message)
        self.voice.heard({**DEATH, "worker": worker, "cause": "exit 1"})


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
    for step in worlds:
        told.report(0, "world", generation=1, workers=[0], step=step)
    told.report(0, "complete", step=12, sha256="ab")
    told.lines()

    told.voice.ended(End(ExitCode.DONE, "completed step 12"))

    line = (
        "holdfast: this run was complete already (step 12), and nothing was trained: to train on, "
        "ask for more epochs in the script; to begin a new run, give --fresh"
    )
    assert told.lines()[1:] == [line] * is_told


def test_death_is_told_at_once_with_its_step_and_cause(told: Told) -> None:
    told.voice.heard(DEATH)

    assert told.lines() == ["holdfast: worker 2 died after step 30 (signal SIGKILL)"]
    (failure,) = told.records("failure")
    assert {name: failure[name] for name in ("worker", "cause", "step", "phase", "fenced")} == {
        "worker": 2,
        "cause": "signal SIGKILL",
        "step": 30,
        "phase": "training",
        "fenced": False,
    }


def test_lost_host_has_one_line_and_its_workers_none_but_all_are_recorded(told: Told) -> None:
    lost = {"host": "b", "reason": "it has not answered for 2.0 s", "workers": (2, 3)}

    told.voice.heard({"kind": "host_lost", "losses": 1, "slots": 2, **lost, "workers": [2, 3]})
    for worker in (2, 3):
        cause = "host b was lost: it has not answered for 2.0 s"
        death = {**DEATH, "worker": worker, "cause": cause, "limit": "host", "host": "b"}
        told.voice.heard(death)
    told.voice.heard({"kind": "host_refused", "host": "b", "reason": "numpy is 2.1.0 on b"})
    told.voice.heard({"kind": "host_back", "host": "b", "slots": 4})

    assert told.lines() == [
        "holdfast: host b was lost with its workers (2, 3): it has not answered for 2.0 s",
        "holdfast: host b stays out: numpy is 2.1.0 on b",
        "holdfast: host b is back, and takes workers of the next launch",
    ]
    assert [record["event"] for record in told.records()] == [
        "host_lost", "failure", "failure", "host_refused", "host_back",
    ]  # fmt: skip
    assert told.records("host_lost")[0].items() >= lost.items()
    assert {record["host"] for record in told.records("failure")} == {"b"}


def test_limit_that_is_about_to_be_met_is_told_and_recorded_with_its_figures(
    told: Told,
) -> None:
    figures = {"resource": "memory", "place": "the host", "used": 9, "limit": 10}

    told.voice.heard({"kind": "pressure", "now": 3.0, "text": "memory of the host", **figures})

    assert told.lines() == ["holdfast: memory of the host"]
    (record,) = told.records("pressure")
    assert {name: record[name] for name in figures} == figures


def test_error_of_one_worker_is_told_when_the_others_go_on(told: Told) -> None:
    told.error(2)
    assert told.lines() == []

    told.report(0, "world")

    assert told.lines() == [
        "holdfast: worker 2 died after step 30 (ValueError: the loss is not finite)"
    ]
    told.report(1, "world")
    assert told.lines() == []


def test_error_of_all_workers_is_told_once_as_the_end(told: Told) -> None:
    for worker in range(3):
        told.error(worker)

    told.voice.ended(End(1, "ValueError: the loss is not finite", "Traceback: here\n"))

    assert told.lines() == [
        "Traceback: here",
        "holdfast: error: ValueError: the loss is not finite",
    ]
    assert [record["worker"] for record in told.records("failure")] == [0, 1, 2]


@pytest.mark.parametrize("is_verbose", [False, True])
def test_calls_of_holdfast_concern_only_who_asks(*, is_verbose: bool) -> None:
    own = f'  File "{Path(console.__file__).parents[1]}/fit/keras_fit.py", line 68, in _fit\n'
    told = Told(verbose=is_verbose)

    told.voice.ended(End(1, "ValueError: odd", f"Traceback:\n{own}ValueError: odd\n"))

    said = "\n".join(told.lines())
    assert ("keras_fit.py" in said) == is_verbose
    assert ("  [1 call of holdfast: -v shows more]" in said) != is_verbose


def test_error_that_the_end_does_not_explain_is_told_before_it(told: Told) -> None:
    told.error(2)

    told.voice.ended(End(70, "the restart budget of 0 is spent"))

    assert told.lines() == [
        "holdfast: worker 2 died after step 30 (ValueError: the loss is not finite)",
        "holdfast: error: the restart budget of 0 is spent",
    ]


def test_error_of_one_worker_is_told_with_its_place_and_kept_with_its_traceback(
    told: Told,
) -> None:
    place = {"where": "contribute (train.py:42)", "traceback": "Traceback: here\n"}
    told.report(2, "error", type="ValueError", message="odd", **place)
    told.voice.heard({**DEATH, "cause": "exit 1"})
    told.report(0, "world")

    assert told.lines() == [
        "holdfast: worker 2 died after step 30 (ValueError: odd), in contribute (train.py:42)",
        "Traceback: here",
    ]
    (failure,) = told.records("failure")
    assert (failure["cause"], failure["traceback"]) == ("ValueError: odd", "Traceback: here\n")


def test_error_of_several_lines_is_told_in_one(told: Told) -> None:
    told.error(2, "first\n    second\n\nthird")
    told.report(0, "world")

    assert told.lines() == [
        "holdfast: worker 2 died after step 30 (ValueError: first second third)"
    ]


@pytest.mark.parametrize(
    ("code", "is_failure", "line"),
    [
        (0, False, "holdfast: over"),
        (75, False, "holdfast: over"),
        (75, True, "holdfast: error: over"),
        (1, False, "holdfast: error: over"),
        (70, False, "holdfast: error: over"),
    ],
)
def test_end_is_an_error_unless_the_run_can_go_on_or_is_done(
    told: Told, code: int, line: str, *, is_failure: bool
) -> None:
    told.voice.ended(End(code, "over", is_failure=is_failure))

    assert told.lines() == [line]
    (ended,) = told.records("job_ended")
    assert (ended["exit_code"], ended["reason"]) == (code, "over")


def test_first_launch_is_silent_and_a_relaunch_says_why(told: Told) -> None:
    workers = (WorkerId(0), WorkerId(1))
    told.voice.launching(Launch(1, workers, 0, "the job begins"))
    assert told.lines() == []

    told.voice.launching(Launch(3, (WorkerId(2),), 1, "worker 1: signal SIGKILL", spent=2))

    assert told.lines() == ["holdfast: relaunching 1 worker (worker 1: signal SIGKILL)"]
    assert [record["generation"] for record in told.records("launch")] == [1, 3]
    (relaunch,) = told.records("relaunch")
    assert (relaunch["spent"], relaunch["workers"]) == (2, [2])


STEP = {"event": "step", "step": 121, "now": 13.2, "generation": 1}
RECOVERY = {
    "event": "recovery", "now": 10.041, "next_step_ms": 40.0, "lost": [2], "survivors": [0, 1, 3],
}  # fmt: skip
DIED = {"event": "failure", "worker": 2, "now": 10.0}
LAUNCHED = {"event": "launch", "generation": 1, "now": 5.0}
RELAUNCH = {"event": "relaunch", "now": 10.5}


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ((DIED, RECOVERY), ["recovered in 41 ms, 3 workers go on"]),
        ((RECOVERY, DIED), ["recovered in 41 ms, 3 workers go on"]),
        ((RECOVERY,), []),  # its death is told soon
        ((RECOVERY, LAUNCHED, DIED), []),
        (({**DIED, "event": "fault", "now": 8.001}, DIED, RECOVERY),
            ["recovered in 2.0 s, 3 workers go on"]),
        ((DIED, {**RECOVERY, "survivors": [3]}), ["recovered in 41 ms, 1 worker goes on"]),
        ((DIED, RELAUNCH, LAUNCHED, STEP, STEP), ["relaunched in 3.2 s, goes on from step 120"]),
        ((DIED, RELAUNCH, LAUNCHED, {**STEP, "step": 4, "steps": 4, "now": 75.0}),
            ["relaunched in 1:05, goes on from step 0"]),
        ((DIED, RELAUNCH, {**LAUNCHED, "generation": 2}, STEP), []),
        ((RELAUNCH, LAUNCHED, STEP), ["relaunched in 2.7 s, goes on from step 120"]),
        ((LAUNCHED, STEP), []),
    ],
)  # fmt: skip
def test_death_is_followed_by_how_the_job_goes_on(
    told: Told, records: tuple[Record, ...], said: list[str]
) -> None:
    for record in records:
        told.voice.saw(record)

    assert told.lines() == [f"holdfast: {line}" for line in said]


def test_recovery_comes_after_the_error_that_its_worker_died_of(told: Told) -> None:
    told.error(2, "odd")
    assert told.lines() == []

    told.voice.saw(DIED)
    told.voice.saw(RECOVERY)

    assert told.lines() == [
        "holdfast: worker 2 died after step 30 (ValueError: odd)",
        "holdfast: recovered in 41 ms, 3 workers go on",
    ]


def test_exception_that_others_survive_is_shown_with_its_first_lines(told: Told) -> None:
    trace = "Traceback (most recent call last):\n" + "  File\n" * 20 + "ValueError: odd\n"
    told.report(2, "error", type="ValueError", message="odd", traceback=trace)
    told.voice.heard({**DEATH, "cause": "exit 1"})

    told.report(0, "world", generation=2, workers=[0, 1], step=30)

    first, *lines = told.lines()
    assert first == "holdfast: worker 2 died after step 30 (ValueError: odd)"
    assert lines == [*trace.splitlines()[:12], "  ..."]

    told.report(1, "error", type="ValueError", message="odd", traceback=trace)
    told.voice.heard({**DEATH, "worker": 1, "cause": "exit 1"})
    told.report(0, "world", generation=3, workers=[0], step=30)

    assert told.lines() == ["holdfast: worker 1 died after step 30 (ValueError: odd)"]


def test_completion_is_kept_once_however_many_tell_it(told: Told) -> None:
    for worker in range(3):
        told.report(worker, "complete", step=40, sha256="cafe")

    (completed,) = told.records("completed")
    assert (completed["step"], completed["sha256"]) == (40, "cafe")
    assert told.lines() == []


def test_notice_of_several_workers_is_told_once(told: Told) -> None:
    for text in ("disk full", "disk full", "disk slow"):
        told.report(1, "notice", text=text)

    assert told.lines() == ["holdfast: disk full", "holdfast: disk slow"]


def test_pause_of_the_whole_job_is_told_once_whoever_has_seen_it(told: Told) -> None:
    told.voice.paused(Pause(100.0, 166.2))
    told.voice.heard({"kind": "paused", "began": 99.9, "ended": 167.2})
    told.voice.heard({"kind": "paused", "began": 200.0, "ended": 230.0})

    assert told.lines() == [
        "holdfast: the job stood still for 66 s, and goes on",
        "holdfast: the job stood still for 30 s, and goes on",
    ]
    kept = told.records("paused")
    assert [(one["seconds"], one["until"]) for one in kept] == [(66.2, 166.2), (30.0, 230.0)]


@pytest.mark.parametrize(
    ("fields", "work"),
    [
        ({}, ""),
        ({"is_reading": True}, ", while it reads the batch of step 8"),
        ({"samples": {"step": 8, "microbatch": 3, "is_validation": False}}, _PART.format("step 8")),
        (
            {"samples": {"step": 7, "microbatch": 3, "is_validation": True}},
            _PART.format("the validation after step 7"),
        ),
    ],
    ids=["unknown", "reading", "step", "validation"],
)
def test_fence_tells_how_long_where_the_worker_is_and_at_which_batch(
    told: Told, fields: dict[str, object], work: str
) -> None:
    told.voice.heard({"kind": "worker_fenced", "worker": 4, "silent_s": 10.04, "step": 7})
    assert told.lines() == [
        "holdfast: worker 4 has been silent for 10.0 s after step 7: killing it"
    ]

    place = {"where": "contribute (train.py:42)", "limit": "stall", **fields}
    told.voice.heard({"kind": "worker_fenced", "worker": 4, "silent_s": 600.04, "step": 7} | place)

    assert told.lines() == [
        "holdfast: worker 4 has kept the others waiting for 600.0 s after step 7, "
        f"in contribute (train.py:42){work}: killing it"
    ]


@pytest.mark.parametrize(
    ("limit_s", "is_awaited", "rest"),
    [
        (600.0, True, ", and all others wait for it: it is killed after 600 s"),
        (600.0, False, ", and others were killed there: it is killed after 600 s"),
        (None, False, ", and no other worker waits for it"),
    ],
)
def test_suspicion_is_told_and_kept(
    told: Told, limit_s: float | None, *, is_awaited: bool, rest: str
) -> None:
    seen = {"seconds": 300.2, "limit_s": limit_s, "is_awaited": is_awaited, "step": 7}
    place = {"where": "f (a.py:1)", "stacks": "f"}
    told.voice.heard({"kind": "suspected", "now": 1.0, "worker": 4, **seen, **place})

    assert told.lines() == [
        f"holdfast: worker 4 has made no progress for 300 s after step 7, in f (a.py:1){rest}"
    ]
    (kept,) = told.records("suspected")
    assert (kept["worker"], kept["stacks"]) == (4, "f")


@pytest.mark.parametrize("is_verbose", [False, True])
def test_module_that_is_not_warm_concerns_only_who_asks(*, is_verbose: bool) -> None:
    told = Told(verbose=is_verbose)

    told.voice.heard({"kind": "preload_failed", "module": "torch", "message": "none"})

    (record,) = told.records()
    assert (record["event"], record["module"]) == ("preload_failed", "torch")
    assert told.lines() == ["holdfast: torch is not preloaded: none"] * is_verbose


def test_module_that_the_user_has_named_is_told_if_it_is_not_preloaded() -> None:
    told = Told(preload=("tensorflow", "tensorflw", "json"), missing_modules=("tensorflw",))
    missing = {"kind": "preload_failed", "module": "tensorflw", "message": "none"}
    told.voice.heard(missing)
    assert told.lines() == []  # that was told when the job began

    for _ in range(2):
        failed = {"kind": "preload_failed", "module": "json", "message": "it keeps threads"}
        told.voice.heard(failed)
    assert told.lines() == ["holdfast: json is not preloaded: it keeps threads"]
    told.voice.heard({"kind": "preload_failed", "module": "keras", "message": "none"})
    assert told.lines() == []
    modules = [record["module"] for record in told.records("preload_failed")]
    assert modules == ["json", "keras"]


def test_library_that_keeps_modules_from_being_preloaded_is_told_once() -> None:
    told = Told(preload=("tensorflow", "json"))

    reason = "the import of pyarrow leaves 2 threads running"
    for name in ("tensorflow", "json"):
        failed = {"kind": "preload_failed", "module": name, "message": reason}
        told.voice.heard(failed | {"keeper": "pyarrow"})

    assert told.lines() == [
        "holdfast: tensorflow is not preloaded: the import of pyarrow leaves 2 threads running; "
        "each launch imports it anew"
    ]


@pytest.mark.parametrize(
    "message", [{}, {"kind": "warm", "pid": 3}, {"kind": "stranger"}, {**DEATH, "clean": True}]
)
def test_message_that_concerns_nobody_is_not_told(told: Told, message: dict[str, object]) -> None:
    told.voice.heard(message)

    assert told.lines() == told.records() == []


def test_lost_output_is_said_once_at_the_end(told: Told) -> None:
    told.voice.lost_output()
    assert told.lines() == []
    for lines in (40, 260):
        told.voice.heard({"kind": "output_dropped", "lines": lines})
    assert told.lines() == []

    told.voice.lost_output()

    (line,) = told.lines()
    assert line.startswith("holdfast: 260 lines of the job's output were lost, because stdout")


def test_error_of_the_workers_is_blamed_on_no_step(told: Told) -> None:
    """Checkpoints that are damaged end all workers at the step at which they begin."""
    for worker in (0, 1):
        told.error(worker, "none of the 3 checkpoints is valid")

    reason = "ValueError: none of the 3 checkpoints is valid"
    told.voice.ended(End(ExitCode.RECOVERY_IMPOSSIBLE, reason))

    assert told.lines() == [f"holdfast: error: {reason}"]


def test_quiet_job_says_only_what_goes_wrong() -> None:
    told = Told(quiet=True)
    launch = Launch(1, (WorkerId(0), WorkerId(1)), relaunch=1, reason="all died")

    told.voice.launching(launch)
    told.voice.ended(End(ExitCode.DONE, "completed step 5"))
    told.report(0, "notice", text="2 workers train", is_progress=True)
    assert told.lines() == []
    told.report(0, "notice", text="checkpoints are at risk")
    assert told.lines() == ["holdfast: checkpoints are at risk"]

    told.voice.heard(DEATH)
    told.voice.ended(End(ExitCode.RECOVERY_IMPOSSIBLE, "the budget is spent"))

    assert told.lines() == [
        "holdfast: worker 2 died after step 30 (signal SIGKILL)",
        "holdfast: error: the budget is spent",
    ]
    assert len(told.records("relaunch")) == 1


@pytest.mark.parametrize(
    ("say", "line", "record"),
    [
        (
            lambda voice: voice.tell(Renewing("1 of 4 workers are left")),
            "1 of 4 workers are left: stopping with a checkpoint, to go on with all workers",
            {"event": "renewing", "reason": "1 of 4 workers are left"},
        ),
        (
            lambda voice: voice.lost_head(LAUNCH, "it is silent"),
            "killed the agent of this host and its workers: it is silent",
            {"event": "agent_killed", "reason": "it is silent"},
        ),
        (
            lambda voice: voice.abandoning("it does not end"),
            "giving the launch up: it does not end",
            {"event": "agent_killed", "reason": "it does not end"},
        ),
        (
            lambda voice: voice.tell(HungUp()),
            "SIGHUP: the job goes on without its terminal",
            {"event": "hung_up"},
        ),
        (
            lambda voice: voice.tell(Warned("the disk\n is slow")),
            "the disk is slow",
            {"event": "warning", "text": "the disk\n is slow"},
        ),
        (
            lambda voice: voice.tell(Deadline("time is up", is_late=True)),
            "time is up",
            {"event": "deadline", "text": "time is up", "is_late": True},
        ),
        (
            lambda voice: voice.failed(ZeroDivisionError("by 0")),
            "error: the head failed (ZeroDivisionError: by 0); the workers go on, but are not "
            "relaunched if all die; report this with the lines above",
            {"event": "head_failed", "reason": "ZeroDivisionError: by 0"},
        ),
    ],
    ids=["renewing", "silent head", "abandoned launch", "hung up", "warning", "note", "failed"],
)
def test_trouble_is_told_in_a_line_and_recorded(
    told: Told, say: Say, line: str, record: Record
) -> None:
    say(told.voice)

    assert told.lines() == [f"holdfast: {line}"]
    assert told.records() == [record]


@pytest.mark.parametrize(
    ("say", "line"),
    [
        (lambda voice: voice.killing("it is overdue"), "ending the launch: it is overdue"),
        (
            lambda voice: voice.lost_head(LAUNCH, ""),
            "the agent of this host died, and its workers with it",
        ),
        (
            lambda voice: voice.stopping("SIGTERM", is_second=False),
            "SIGTERM: stopping at the next step with a checkpoint (again: at once)",
        ),
        (lambda voice: voice.stopping("SIGINT", is_second=True), "SIGINT: stopping at once"),
    ],
    ids=["killing", "lost head", "first request", "second request"],
)
def test_what_other_records_tell_is_said_and_not_recorded(told: Told, say: Say, line: str) -> None:
    say(told.voice)

    assert told.lines() == [f"holdfast: {line}"]
    assert told.records() == []


@pytest.mark.parametrize(
    ("limit", "line"),
    [
        (
            "standstill",
            "all 2 workers have waited for each other inside MPI for 12.3 s: ending the launch",
        ),
        (
            "reading",
            "none of 2 workers got a byte of the checkpoints for 12 s, so their disk hangs: "
            "ending the launch (nothing is known to be damaged)",
        ),
    ],
)
def test_launch_that_goes_on_no_more_is_told_with_its_reason(
    told: Told, limit: str, line: str
) -> None:
    figures = {"limit": limit, "seconds": 12.3, "workers": [0, 1]}

    told.voice.heard({"kind": "stalled", "now": 1.0, **figures})

    assert told.lines() == [f"holdfast: {line}"]
    assert told.records() == [{"event": "stalled", **figures, "workers": (0, 1)}]


def test_pool_that_was_replaced_concerns_the_journal_alone(told: Told) -> None:
    told.voice.heard({"kind": "pool_restarted", "cause": "signal SIGKILL"})

    assert told.lines() == []
    assert told.records() == [{"event": "pool_restarted", "cause": "signal SIGKILL"}]


def test_lines_that_stderr_has_not_taken_are_recorded(told: Told) -> None:
    told.voice.heard({"kind": "output_dropped", "lines": 3})

    assert told.records() == [{"event": "output_dropped", "lines": 3}]


def test_other_client_is_recorded_with_the_head_and_its_launch(told: Told) -> None:
    told.voice.attached({"script": "a.py", "generation": 4, "workers": [7, 8], "relaunch": 1})

    assert told.lines() == []
    assert told.records() == [
        {"event": "taken_over", "agent": os.getpid(), "generation": 4, "workers": [7, 8]}
    ]


def test_death_after_a_lost_head_has_the_error_that_was_told_before(told: Told) -> None:
    told.voice.lost_head(LAUNCH, "")
    told.voice.recall(report(8, "error", **ERROR))
    told.lines()

    told.voice.heard(exited(8))
    told.voice.heard(report(7, "world"))

    death = "holdfast: worker 8 died after step 3 (ValueError: odd)"
    assert told.lines() == [death, "Traceback: here"]
    (failure,) = told.records("failure")
    assert (failure["launch_rank"], failure["traceback"]) == (1, ERROR["traceback"])


def test_end_of_a_training_that_was_told_before_a_lost_head_is_recorded_once(
    told: Told,
) -> None:
    for step in (9, 5):
        told.voice.recall(report(7, "complete", step=step, sha256="cafe"))
    for step in (9, 12):
        told.voice.heard(report(8, "complete", step=step, sha256="cafe"))

    (completed,) = told.records()
    assert (completed["event"], completed["step"]) == ("completed", 12)


def test_deaths_before_and_after_a_lost_head_are_counted_together(told: Told) -> None:
    told.voice.lost_head(LAUNCH, "")
    told.voice.recall(exited(7, is_clean=True))
    told.voice.recall(exited(7))
    told.voice.heard(exited(8))
    told.lines()

    told.voice.ended(End(ExitCode.RECOVERY_IMPOSSIBLE, "the budget is spent"))

    assert told.lines() == [
        "holdfast: error: the budget is spent",
        "holdfast: 2 deaths: signal SIGKILL",
    ]
    assert [record["event"] for record in told.records()[-2:]] == ["warning", "job_ended"]


def test_deaths_are_not_counted_of_a_job_that_ended_otherwise(told: Told) -> None:
    for worker in (7, 8):
        told.voice.heard(exited(worker))
    told.lines()

    told.voice.ended(End(ExitCode.TERMINATED, "told to stop"))

    assert told.lines() == ["holdfast: error: told to stop"]


def death_of(worker: int, **more: Any) -> dict[str, Any]:
    return {"kind": "worker_exited", "worker": worker, "step": 7, "samples": SAMPLES, **more}


@pytest.fixture
def deaths() -> DeathLog:
    log = DeathLog()
    log.launching([4, 5, 6, 7])
    return log


def test_record_has_the_evidence_and_the_rank_at_launch(deaths: DeathLog) -> None:
    evidence = {"limit": "stall", "stacks": "f", "stderr": ["oh"], "core": 3, "status": -9}

    fields = deaths.died(death_of(6, **evidence), "fenced")

    assert fields["launch_rank"] == 2
    assert {name: fields[name] for name in ("limit", "stacks", "stderr", "core")} == {
        name: evidence[name] for name in ("limit", "stacks", "stderr", "core")
    }
    assert (fields["cause"], fields["samples"]) == ("fenced", SAMPLES)
    assert "status" not in fields
