"""What a user reads of orders, takeovers and troubles of a job, and what its journal keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from supervised import exited, report, setup_in

from holdfast.recovery.event import End, ExitCode, Launch
from holdfast.recovery.world import WorkerId
from holdfast.runtime.run.journal import Record, read_journal
from holdfast.runtime.supervisor import job_log
from holdfast.runtime.supervisor.beginning import lost
from holdfast.runtime.supervisor.job_log import Narration
from holdfast.runtime.supervisor.job_setup import JobSetup
from holdfast.runtime.supervisor.takeover import Takeover

LAUNCH = Launch(4, (WorkerId(7), WorkerId(8)), 1, "taken over", 2)
ERROR = {"type": "ValueError", "message": "odd", "traceback": "Traceback: here\n"}


class Told:
    """A narration of a job, and what has become of it."""

    def __init__(self, setup: JobSetup) -> None:
        self.setup = setup
        self._written = b""
        self.voice = Narration(setup.journal, is_verbose=False, write=self._take)

    def lines(self) -> list[str]:
        """Return what was said since the last time."""
        lines, self._written = self._written.decode().splitlines(), b""
        return lines

    def records(self) -> list[Record]:
        """Return what was recorded so far, without what all records have."""
        common = {"run_id", "source", "now", "time"}
        found = read_journal(self.setup.options.run_dir / "journal.jsonl")
        return [{k: v for k, v in record.items() if k not in common} for record in found]

    def take_over(self, **changes: Any) -> None:
        fields: dict[str, Any] = {"launch": LAUNCH, "agent": SimpleNamespace(pid=4711)}
        setup = dataclasses.replace(self.setup, **changes)
        self.voice.took_over(setup, cast(Takeover, SimpleNamespace(**fields)))

    def _take(self, lines: bytes) -> None:
        self._written += lines


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setattr(job_log, "usable_cores", lambda: 64)
    setup = setup_in(tmp_path)
    yield Told(setup)
    setup.journal.close()
    setup.lease.release()


Say = Callable[[Narration], None]


@pytest.mark.parametrize(
    ("say", "line", "record"),
    [
        (
            lambda voice: voice.renewing("1 of 4 workers are left"),
            "1 of 4 workers are left: stopping with a checkpoint, to go on with all workers",
            {"event": "renewing", "reason": "1 of 4 workers are left"},
        ),
        (
            lambda voice: voice.killing_agent("it is silent"),
            "killing the agent of this host and its workers: it is silent",
            {"event": "agent_killed", "reason": "it is silent"},
        ),
        (
            lambda voice: voice.hung_up(),
            "SIGHUP: the job goes on without its terminal",
            {"event": "hung_up"},
        ),
        (
            lambda voice: voice.warned("the disk\n is slow"),
            "the disk is slow",
            {"event": "warning", "text": "the disk\n is slow"},
        ),
        (
            lambda voice: voice.noted("time is up", "deadline", is_late=True),
            "time is up",
            {"event": "deadline", "text": "time is up", "is_late": True},
        ),
        (
            lambda voice: voice.failed(ZeroDivisionError("by 0")),
            "error: the supervisor failed (ZeroDivisionError: by 0); the workers go on, but are "
            "not relaunched if all die; `holdfast attach` with the run directory watches over "
            "them again",
            {"event": "supervisor_failed", "reason": "ZeroDivisionError: by 0"},
        ),
    ],
    ids=["renewing", "killing the agent", "hung up", "warning", "note", "failed"],
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
            lambda voice: voice.lost_agent(),
            "the agent of this host died, and its workers with it",
        ),
        (
            lambda voice: voice.signalled("SIGTERM", is_second=False),
            "SIGTERM: stopping at the next step with a checkpoint (again: at once)",
        ),
        (lambda voice: voice.signalled("SIGINT", is_second=True), "SIGINT: stopping at once"),
    ],
    ids=["killing", "lost agent", "first signal", "second signal"],
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
    assert told.records() == [{"event": "stalled", **figures}]


def test_pool_that_was_replaced_concerns_the_journal_alone(told: Told) -> None:
    told.voice.heard({"kind": "pool_restarted", "cause": "signal SIGKILL"})

    assert told.lines() == []
    assert told.records() == [{"event": "pool_restarted", "cause": "signal SIGKILL"}]


def test_lines_that_stderr_has_not_taken_are_recorded_if_there_are_any(told: Told) -> None:
    told.voice.dropped(0)
    told.voice.dropped(3)

    assert told.records() == [{"event": "output_dropped", "of": "supervisor", "lines": 3}]


def test_takeover_is_told_with_the_job_and_recorded_with_its_agent(told: Told) -> None:
    told.take_over()

    (line,) = told.lines()
    run_dir = told.setup.options.run_dir
    assert line == (
        f"holdfast: taking over the job in {run_dir}, which lost its supervisor: "
        "train.py on 2 workers"
    )
    assert told.records() == [
        {"event": "taken_over", "agent": 4711, "generation": 4, "workers": [7, 8]}
    ]


def test_wishes_that_a_takeover_cannot_heed_are_told_before_it(told: Told) -> None:
    told.take_over(warning="the job keeps its options")

    warning, takeover = told.lines()
    assert warning == "holdfast: warning: the job keeps its options"
    assert takeover.startswith("holdfast: taking over the job")


def test_death_after_a_takeover_has_the_error_that_was_told_before(told: Told) -> None:
    told.take_over()
    told.voice.recall(report(8, "error", **ERROR))
    told.lines()

    told.voice.heard(exited(8))
    told.voice.heard(report(7, "world"))

    assert told.lines() == ["holdfast: worker 8 died after step 3 (ValueError: odd)"]
    (failure,) = [record for record in told.records() if record["event"] == "failure"]
    assert (failure["launch_rank"], failure["traceback"]) == (1, ERROR["traceback"])


def test_end_of_a_training_that_was_told_before_a_takeover_is_recorded_once(told: Told) -> None:
    for step in (9, 5):
        told.voice.recall(report(7, "complete", step=step, sha256="cafe"))
    for step in (9, 12):
        told.voice.heard(report(8, "complete", step=step, sha256="cafe"))

    (completed,) = told.records()
    assert (completed["event"], completed["step"]) == ("completed", 12)


def test_deaths_before_and_after_a_takeover_have_their_step_in_common(told: Told) -> None:
    told.take_over()
    told.voice.recall(exited(7, is_clean=True))
    told.voice.recall(exited(7))
    told.voice.heard(exited(8))
    told.lines()

    told.voice.ended(End(ExitCode.RECOVERY_IMPOSSIBLE, "the budget is spent"))

    assert told.lines() == [
        "holdfast: error: the budget is spent",
        "holdfast: step 4 has killed workers 7, 8",
    ]
    assert [record["event"] for record in told.records()[-2:]] == ["warning", "job_ended"]


def test_common_step_is_not_told_of_a_job_that_ended_otherwise(told: Told) -> None:
    for worker in (7, 8):
        told.voice.heard(exited(worker))
    told.lines()

    told.voice.ended(End(ExitCode.TERMINATED, "told to stop"))

    assert told.lines() == ["holdfast: error: told to stop"]


def test_rank_that_loses_its_workers_is_suspected_once_and_recorded(told: Told) -> None:
    for first in range(0, 40, 10):
        workers = tuple(WorkerId(first + rank) for rank in range(4))
        told.voice.launching(Launch(first + 1, workers, 0, ""))
        told.voice.heard(exited(first + 2))

    suspicion = "rank 2 has lost 3 workers, far more than the others: is the machine sound?"
    assert told.lines().count(f"holdfast: {suspicion}") == 1
    texts = [record["text"] for record in told.records() if record["event"] == "suspicion"]
    assert texts == [suspicion]


def test_checkpoints_that_are_gone_may_come_back_from_a_mirror(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    options = dataclasses.replace(setup.options, repair_from=Path("/copy"))
    mirrored = dataclasses.replace(setup, options=options)
    newer = dataclasses.replace(mirrored, saved_step=380)

    assert lost(390, setup).endswith(
        "training begins at step 0; if you have that checkpoint, stop the job and put it back"
    )
    assert lost(390, mirrored).endswith("takes what /copy has, or begins at step 0")
    assert lost(390, newer).endswith("takes what /copy has, or goes on from step 380")
