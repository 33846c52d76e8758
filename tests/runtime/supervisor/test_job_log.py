"""What a user reads of a job, and what the journal keeps of it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.recovery.detector import Pause
from holdfast.recovery.event import End, Launch
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.journal import Journal, Record, read_journal
from holdfast.runtime.supervisor import job_log as module
from holdfast.runtime.supervisor.job_log import Narration
from holdfast.runtime.supervisor.job_setup import JobSetup

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


class Told:
    """A narration, and what has become of it."""

    def __init__(self, path: Path, *, is_quiet: bool = False) -> None:
        self._path = path
        self._journal = Journal(path, run_id="run", source="supervisor")
        self._written = b""
        self.voice = Narration(self._journal, is_verbose=False, write=self._take, is_quiet=is_quiet)

    def lines(self) -> list[str]:
        """Return what was said since the last time."""
        lines, self._written = self._written.decode().splitlines(), b""
        return lines

    def _take(self, lines: bytes) -> None:
        self._written += lines

    def records(self, event: str) -> list[Record]:
        return [record for record in read_journal(self._path) if record["event"] == event]

    def report(self, worker: int, kind: str, **fields: Any) -> None:
        report = {"kind": kind, **fields}
        self.voice.heard({"kind": "worker_report", "worker": worker, "report": report})

    def error(self, worker: int, message: str = "the loss is not finite") -> None:
        self.report(worker, "error", type="ValueError", message=message)
        self.voice.heard({**DEATH, "worker": worker, "cause": "exit 1"})

    def close(self) -> None:
        self._journal.close()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    told = Told(tmp_path / "journal.jsonl")
    yield told
    told.close()


def setup_of(**fields: Any) -> JobSetup:
    """Return as much of a setup as is told when a job begins."""
    options = {"script": Path("/a/slow.py"), "run_dir": Path("/run"), "workers": 2}
    terms = {"microbatches": 2, "seed": 0, "threads": 1, "script_sha256": None, "argv": None}
    record = SimpleNamespace(**(terms | fields.pop("record", {})))
    rest = dict.fromkeys(field.name for field in dataclasses.fields(JobSetup))
    given = {"options": JobOptions(**(options | fields.pop("options", {}))), "record": record}
    return JobSetup(**(rest | given | fields))


@pytest.mark.parametrize(
    ("fields", "beginning"),
    [
        ({"is_resumed": False}, "starting slow.py on 2 workers"),
        ({"is_resumed": True, "saved_step": 390}, "resuming slow.py from step 390 on 2 workers"),
        ({"is_resumed": True}, "starting slow.py from the beginning on 2 workers"),
        ({"is_resumed": True, "saved_step": 0}, "starting slow.py from step 0 on 2 workers"),
        (
            {"is_resumed": True, "options": {"repair_from": Path("/copy")}},
            "resuming slow.py on 2 workers",
        ),
    ],
)
def test_job_begins_with_the_step_that_it_goes_on_from(
    told: Told, fields: dict[str, Any], beginning: str
) -> None:
    told.voice.began(setup_of(**fields))

    (line,) = told.lines()
    assert line.startswith(f"holdfast: {beginning} (2 microbatches, seed 0")
    assert line.endswith("in /run")


def test_directory_without_locks_is_told_with_what_follows_a_death(told: Told) -> None:
    told.voice.began(setup_of(is_resumed=False, is_without_locks=True))

    line = told.lines()[1]
    assert "the file system of /run has no locks (flock)" in line
    assert "every 10 s" in line
    assert "the next one waits 60 s" in line


def test_run_that_goes_on_with_another_script_says_so(told: Told, tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text("two()")
    begun_with = hashlib.sha256(b"one()").hexdigest()
    same = hashlib.sha256(b"two()").hexdigest()
    fields: dict[str, Any] = {"is_resumed": True, "saved_step": 390, "options": {"script": script}}

    told.voice.began(setup_of(**fields, record={"script_sha256": begun_with}))
    (_, line) = told.lines()
    assert line == (
        "holdfast: slow.py has changed since this run began. The run goes on with the new "
        "script, but with the weights and the learning rate of its checkpoint; --fresh begins "
        "a new run"
    )

    told.voice.began(setup_of(**fields, record={"script_sha256": same}))
    assert len(told.lines()) == 1
    fields["saved_step"] = None
    told.voice.began(setup_of(**fields, record={"script_sha256": begun_with}))
    assert len(told.lines()) == 1


def test_run_that_goes_on_with_other_arguments_says_so(told: Told) -> None:
    """A search over arguments in one directory would show the first result again and again."""
    fields: dict[str, Any] = {"is_resumed": True, "saved_step": 390}
    options = {"argv": ("--name", "a b")}

    told.voice.began(setup_of(**fields, options=options, record={"argv": []}))
    (_, line) = told.lines()
    assert line == (
        "holdfast: the run was begun with no arguments, and slow.py has the arguments "
        "\"--name 'a b'\" now: what is trained already stays as it is; to train anew, give "
        "--fresh or another --run-dir"
    )

    for argv in (None, ["--name", "a b"]):
        told.voice.began(setup_of(**fields, options=options, record={"argv": argv}))
        assert len(told.lines()) == 1


@pytest.mark.parametrize(
    ("microbatches", "line"),
    [
        (1, "1 microbatch for 4 workers: only one worker computes, and the others wait"),
        (3, "3 microbatches for 4 workers: only 3 workers compute, and the others wait"),
    ],
)
def test_workers_without_work_are_told_with_their_number(
    told: Told, microbatches: int, line: str
) -> None:
    told.voice.began(setup_of(options={"workers": 4}, record={"microbatches": microbatches}))

    assert told.lines()[1:] == [
        f"holdfast: {line}; all compute in a run that begins with --microbatches 4"
    ]
    told.voice.began(setup_of(options={"workers": 4}, record={"microbatches": 4}))
    assert len(told.lines()) == 1


@pytest.mark.parametrize("text", ["import horovod.keras as hvd", "from horovod import keras"])
def test_script_for_horovod_is_told_where_its_way_is_described(
    told: Told, tmp_path: Path, text: str
) -> None:
    script = tmp_path / "slow.py"
    for content, lines in ((text, 1), ("import keras", 0)):
        script.write_text(content)

        told.voice.began(setup_of(options={"script": script}))

        page = "docs/migration/horovod.md"
        assert [page in line for line in told.lines()[1:]] == [True] * lines


def test_fresh_run_says_where_the_old_one_is(told: Told) -> None:
    told.voice.began(setup_of(set_aside=Path("/run/previous-2")))

    (line,) = told.lines()[1:]
    assert line == "holdfast: --fresh has set the run that was there aside, in /run/previous-2"


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
    told: Told, begun: int | None, worlds: tuple[int, ...], *, is_told: bool
) -> None:
    told.voice.began(setup_of(is_resumed=True, saved_step=begun))
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


def test_run_that_has_lost_all_checkpoints_says_so(told: Told) -> None:
    told.voice.began(setup_of(is_resumed=True, lost_step=390))

    assert told.lines()[1:] == [
        "holdfast: the journal knows of a checkpoint of step 390, but none is left in "
        "/run/checkpoints: training begins at step 0; if you have that checkpoint, stop the job "
        "and put it back"
    ]


def test_run_whose_newest_checkpoint_is_gone_says_from_which_one_it_goes_on(told: Told) -> None:
    """As on another host than the one whose local directory has it."""
    options = {"local_dir": Path("/local")}
    told.voice.began(setup_of(is_resumed=True, saved_step=380, lost_step=390, options=options))

    assert told.lines()[1:] == [
        "holdfast: the journal knows of a checkpoint of step 390, but step 380 is the newest in "
        "/run/checkpoints and in /local of this host: training goes on from step 380; if you "
        "have that checkpoint, stop the job and put it back"
    ]


def test_checkpoint_in_the_local_directory_of_the_job_before_is_told_with_its_option(
    told: Told,
) -> None:
    told.voice.began(setup_of(is_resumed=True, lost_step=390, lost_local_dir="/local"))

    assert told.lines()[1:] == [
        "holdfast: the journal knows of a checkpoint of step 390, but none is left in "
        "/run/checkpoints: training begins at step 0; the job before had --local-dir /local, which "
        "may have it: stop this job, and give that option again"
    ]


def test_drains_without_a_local_directory_are_told_to_do_nothing(told: Told) -> None:
    told.voice.began(setup_of(is_resumed=False, options={"drain_every": "4"}))

    assert told.lines()[1:] == ["holdfast: --drain-every 4 does nothing without --local-dir"]


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


def test_worker_that_left_by_agreement_is_not_worth_a_line(told: Told) -> None:
    told.voice.heard({**DEATH, "clean": True})

    assert told.lines() == []
    assert told.records("failure") == []


def test_limit_that_is_about_to_be_met_is_told_and_recorded_with_its_figures(told: Told) -> None:
    figures = {"resource": "memory", "place": "the host", "used": 9, "limit": 10, "left_s": 50.0}

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
def test_calls_of_holdfast_concern_only_who_asks(tmp_path: Path, *, is_verbose: bool) -> None:
    own = f'  File "{Path(module.__file__).parents[1]}/fit/keras_fit.py", line 68, in _fit\n'
    journal = Journal(tmp_path / "journal.jsonl", run_id="run", source="supervisor")
    written: list[bytes] = []
    voice = Narration(journal, is_verbose=is_verbose, write=written.append)

    voice.ended(End(1, "ValueError: odd", f"Traceback:\n{own}ValueError: odd\n"))
    journal.close()

    said = b"".join(written).decode()
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
        "holdfast: worker 2 died after step 30 (ValueError: odd), in contribute (train.py:42)"
    ]
    (failure,) = told.records("failure")
    assert (failure["cause"], failure["traceback"]) == ("ValueError: odd", "Traceback: here\n")


def test_error_of_several_lines_is_told_in_one(told: Told) -> None:
    told.error(2, "first\n    second\n\nthird")
    told.report(0, "world")

    assert told.lines() == [
        "holdfast: worker 2 died after step 30 (ValueError: first second third)"
    ]


def test_failure_that_running_again_may_cure_is_an_error_even_to_the_quiet(told: Told) -> None:
    told.voice.ended(End(ExitCode.STOPPED_EARLY, "none could be read", is_failure=True))

    assert told.lines() == ["holdfast: error: none could be read"]


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (0, "holdfast: over"),
        (75, "holdfast: over"),
        (1, "holdfast: error: over"),
        (70, "holdfast: error: over"),
    ],
)
def test_end_is_an_error_unless_the_run_can_go_on_or_is_done(
    told: Told, code: int, line: str
) -> None:
    told.voice.ended(End(code, "over"))

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


def test_fence_is_told_with_its_silence(told: Told) -> None:
    told.voice.heard({"kind": "worker_fenced", "worker": 4, "silent_s": 10.04, "step": 7})

    assert told.lines() == [
        "holdfast: worker 4 has been silent for 10.0 s after step 7: killing it"
    ]


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


_PART = ", with microbatch 3 of {}"


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
def test_fence_of_a_stall_tells_where_the_worker_is_and_at_which_batch(
    told: Told, fields: dict[str, object], work: str
) -> None:
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
    told.voice.heard({"kind": "worker_suspected", "now": 1.0, "worker": 4, **seen, **place})

    assert told.lines() == [
        f"holdfast: worker 4 has not come on for 300 s after step 7, in f (a.py:1){rest}"
    ]
    (kept,) = told.records("suspected")
    assert (kept["worker"], kept["stacks"]) == (4, "f")


@pytest.mark.parametrize("is_verbose", [False, True])
def test_module_that_is_not_warm_concerns_only_who_asks(
    tmp_path: Path, *, is_verbose: bool
) -> None:
    journal = Journal(tmp_path / "journal.jsonl", run_id="run", source="supervisor")
    written: list[bytes] = []
    voice = Narration(journal, is_verbose=is_verbose, write=written.append)

    voice.heard({"kind": "preload_failed", "module": "torch", "message": "none"})
    journal.close()

    (record,) = read_journal(tmp_path / "journal.jsonl")
    assert (record["event"], record["module"]) == ("preload_failed", "torch")
    said = b"".join(written).decode()
    assert said == ("holdfast: torch is not preloaded: none\n" if is_verbose else "")


def test_module_that_the_user_has_named_is_told_if_it_is_not_there(told: Told) -> None:
    named = {"preload": ("tensorflow", "tensorflw", "json", "sys")}
    told.voice.began(setup_of(is_resumed=False, options=named))

    assert told.lines()[1:] == [
        "holdfast: tensorflw is not preloaded: there is no such module; "
        "correct --preload or install it"
    ]
    for _ in range(2):
        failed = {"kind": "preload_failed", "module": "json", "message": "it keeps threads"}
        told.voice.heard(failed)
    assert told.lines() == ["holdfast: json is not preloaded: it keeps threads"]
    told.voice.heard({"kind": "preload_failed", "module": "keras", "message": "none"})
    assert told.lines() == []
    modules = [record["module"] for record in told.records("preload_failed")]
    assert modules == ["tensorflw", "json", "keras"]


def test_library_that_keeps_modules_from_being_preloaded_is_told_once(told: Told) -> None:
    told.voice.began(setup_of(is_resumed=False, options={"preload": ("tensorflow", "json")}))
    told.lines()

    reason = "the import of pyarrow leaves 2 threads running"
    for name in ("tensorflow", "json"):
        failed = {"kind": "preload_failed", "module": name, "message": reason}
        told.voice.heard(failed | {"keeper": "pyarrow"})

    assert told.lines() == [
        "holdfast: tensorflow is not preloaded: the import of pyarrow leaves 2 threads running; "
        "each launch imports it anew"
    ]


@pytest.mark.parametrize("message", [{}, {"kind": "warm", "pid": 3}, {"kind": "stranger"}])
def test_message_that_concerns_nobody_is_not_told(told: Told, message: dict[str, object]) -> None:
    told.voice.heard(message)

    assert told.lines() == []


def test_lost_output_is_said_once_at_the_end(told: Told) -> None:
    told.voice.lost_output()
    assert told.lines() == []
    for lines in (40, 260):
        told.voice.heard({"kind": "output_dropped", "lines": lines})
    assert told.lines() == []

    told.voice.lost_output()

    (line,) = told.lines()
    assert line.startswith("holdfast: 260 lines of the workers' output were lost, because stdout")


def test_error_of_the_workers_is_blamed_on_no_step(told: Told) -> None:
    """Checkpoints that are damaged end all workers at the step at which they begin."""
    for worker in (0, 1):
        told.error(worker, "none of the 3 checkpoints is valid")

    reason = "ValueError: none of the 3 checkpoints is valid"
    told.voice.ended(End(ExitCode.RECOVERY_IMPOSSIBLE, reason))

    assert told.lines() == [f"holdfast: error: {reason}"]


def test_quiet_job_says_only_what_goes_wrong(tmp_path: Path) -> None:
    told = Told(tmp_path / "journal.jsonl", is_quiet=True)
    launch = Launch(1, (WorkerId(0), WorkerId(1)), relaunch=1, reason="all died")

    told.voice.began(setup_of(is_resumed=False))
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
    told.close()
