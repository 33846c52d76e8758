"""A run is followed through all its jobs to its end; shell scripts stand in for the jobs."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest

from holdfast.runtime.run.entries import name_of
from holdfast.runtime.tools import followed_run
from holdfast.runtime.tools.followed_run import (
    MOST_IDLE_JOBS,
    OWNED_FOR_S,
    SUSPENDED_FOR_S,
    FollowedRun,
    Incarnation,
    Resubmission,
    RunTerms,
    StderrPipe,
    follow_run,
    run_command,
)
from holdfast.runtime.tools.strike import Agenda, parse_plan
from holdfast.runtime.tools.striker import JobTraces

BOUND_S = 90.0

STANDS = "say launch; exec sleep 600"

GOES_ON = "trap 'exit 0' CONT; say launch; while :; do sleep 0.05; done"
"""A job that comes to its end as soon as it was stopped and woken up."""

_WORDS = """
mkdir -p {0}
fields() {{
    echo '"now": 1, "time": 1, "workers": [0], "epoch": 1, "seconds": 1, "samples": 1'
}}
append() {{
    echo '{{"event": "'$1'", "step": '$2', "generation": 1, '$(fields)'}}' >> {0}/journal.jsonl
}}
say() {{ append $1 1; }}
step() {{ append step $1; }}
"""

Follow: TypeAlias = Callable[..., FollowedRun]


@pytest.fixture
def follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Follow a run whose n-th job is the n-th script; another job would be an error."""

    def follow_scripts(
        *scripts: str, strikes: str = "", hang_after_s: float = BOUND_S
    ) -> FollowedRun:
        coming = iter(scripts)

        def command(run_dir: Path, _arguments: object) -> tuple[str, ...]:
            return ("sh", "-c", _WORDS.format(run_dir) + next(coming))

        monkeypatch.setattr(followed_run, "run_command", command)
        terms = RunTerms(("train.py",), tmp_path / "job", hang_after_s)
        return follow_run(terms, Agenda(parse_plan(strikes) if strikes else ()))

    return follow_scripts


@pytest.mark.process
def test_job_that_ends_well_is_the_only_one(follow: Follow) -> None:
    done = follow("say launch; say completed")

    assert done.exit_codes == (0,)
    assert [name_of(entry.event) for entry in done.entries] == ["launch", "completed"]
    assert (done.failure, done.evidence, done.leftovers) == (None, "", ())
    assert done.began < done.ended


@pytest.mark.process
def test_job_that_was_stopped_early_is_started_again(follow: Follow) -> None:
    done = follow("step 1; exit 75", "step 2")

    assert done.exit_codes == (75, 0)
    assert [entry.event.step for entry in done.entries] == [1, 2]


@pytest.mark.process
def test_failed_job_ends_the_run_with_its_last_records_as_evidence(
    follow: Follow, tmp_path: Path
) -> None:
    done = follow("for n in $(seq 20); do step $n; done; echo no memory >&2; exit 1")

    assert done.failure == "the job ended with exit code 1"
    head, _, records = done.evidence.partition("the end of the journal:\n")
    assert head == "processes:\n"
    assert re.findall(r'"step": (\d+)', records) == [str(number) for number in range(9, 21)]
    assert (tmp_path / "job" / "stderr.txt").read_text() == "no memory\n"


@pytest.mark.process
def test_directory_of_another_job_is_asked_for_again_after_a_pause(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "_OWNED_PAUSE_S", 0.15)

    done = follow("exit 76", "exit 0")

    assert done.exit_codes == (76, 0)
    assert done.ended - done.began >= 0.15


class _ClockFromSleep:
    """A clock that stands still until a job has become ``sleep``, however long that takes."""

    sleep = staticmethod(time.sleep)

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._goes = False

    def monotonic(self) -> float:
        """Return the seconds, as ``time.monotonic`` does."""
        self._goes = self._goes or any(
            (job.name(), job.status()) == ("sleep", psutil.STATUS_SLEEPING)
            for job in psutil.Process().children()
        )
        return time.monotonic() if self._goes else self._begin


@pytest.mark.process
def test_run_without_a_new_record_for_too_long_is_ended(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "time", _ClockFromSleep())

    done = follow(STANDS, hang_after_s=0.25)

    assert done.exit_codes == ()
    assert re.fullmatch(r"nothing has moved in the journal for \d+ s", str(done.failure))
    assert re.search(r"^  \d+ sleep S$", done.evidence, re.MULTILINE)


@pytest.mark.process
def test_what_a_job_leaves_behind_is_named_and_removed(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "ENDS_WITHIN_S", 0.1)

    done = follow('echo x > "$TMPDIR/forgotten"; sleep 600 & exit 0')

    process, file = done.leftovers
    assert re.fullmatch(r"process \d+ (sleep|sh)", process)
    assert file.endswith("/tmp/forgotten")
    assert not Path(file).exists()


@pytest.mark.process
def test_supervisor_that_a_strike_has_killed_is_replaced(follow: Follow) -> None:
    done = follow(STANDS, "say completed", strikes="kill client on launch")

    assert done.exit_codes == (-9, 0)
    assert [str(struck.strike) for struck in done.struck] == ["kill client on launch"]
    assert done.struck[0].has_hit


@pytest.mark.process
def test_job_that_was_stopped_as_a_whole_is_woken_when_it_keeps_its_directory(
    follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_run, "SUSPENDED_FOR_S", -1.0)

    done = follow(GOES_ON, "exit 76", strikes="stop client on launch")

    assert done.exit_codes == (76, 0)
    assert done.failure is None


@pytest.mark.process
def test_stopped_supervisor_is_woken_at_the_end_of_a_run_that_went_on_without_it(
    follow: Follow,
) -> None:
    done = follow(GOES_ON, "say completed", strikes="stop client on launch")

    assert done.exit_codes == (0,)
    assert done.leftovers == ()


@pytest.mark.process
def test_strike_whose_moment_never_came_is_told_as_missed(follow: Follow) -> None:
    done = follow("step 7", strikes="kill agent on failure")

    (struck,) = done.struck
    assert (struck.victim, struck.step) == (None, 7)


@pytest.mark.process
@pytest.mark.parametrize("code", [75, 130, 143, -9, -15])
def test_job_that_was_ended_from_outside_is_started_again(code: int) -> None:
    assert Resubmission().refusal(code, 3, 0.0) is None


@pytest.mark.parametrize("code", [1, 2, 70])
def test_job_that_failed_is_not_started_again(code: int) -> None:
    assert Resubmission().refusal(code, 3, 0.0) == f"the job ended with exit code {code}"


def test_directory_of_another_job_is_waited_for_within_a_bound() -> None:
    rule = Resubmission()

    assert rule.refusal(76, 3, 100.0) is None
    assert rule.refusal(76, 3, 100.0 + OWNED_FOR_S) is None
    assert "has owned" in str(rule.refusal(76, 3, 101.0 + OWNED_FOR_S))


def test_job_that_owns_the_directory_for_long_is_taken_for_a_suspended_one() -> None:
    rule = Resubmission()
    assert not rule.is_suspended(0.0)

    rule.refusal(76, 3, 100.0)

    assert not rule.is_suspended(100.0 + SUSPENDED_FOR_S)
    assert rule.is_suspended(101.0 + SUSPENDED_FOR_S)
    rule.refusal(75, 3, 102.0 + SUSPENDED_FOR_S)
    assert not rule.is_suspended(103.0 + SUSPENDED_FOR_S)


def test_bound_begins_again_after_a_job_that_had_the_directory() -> None:
    rule = Resubmission()
    rule.refusal(76, 3, 0.0)
    rule.refusal(75, 3, 1.0)

    assert rule.refusal(76, 3, 2.0 + OWNED_FOR_S) is None


def test_jobs_that_make_no_step_are_given_up() -> None:
    rule = Resubmission()
    refusals = [rule.refusal(75, 5, float(n)) for n in range(MOST_IDLE_JOBS + 1)]

    assert refusals[:-1] == [None] * MOST_IDLE_JOBS
    assert refusals[-1] == f"{MOST_IDLE_JOBS} jobs in a row ended early without a new step"


def test_progress_pays_for_jobs_that_ended_early() -> None:
    rule = Resubmission()

    assert [rule.refusal(75, n, float(n)) for n in range(50)] == [None] * 50


def test_steps_that_were_made_before_are_no_progress() -> None:
    """A run that falls back again and again does not go on for ever."""
    rule = Resubmission()
    steps = [9, *[4, 9] * MOST_IDLE_JOBS]

    refusals = [rule.refusal(75, step, 0.0) for step in steps]

    assert refusals[:MOST_IDLE_JOBS] == [None] * MOST_IDLE_JOBS
    assert "without a new step" in str(refusals[MOST_IDLE_JOBS])


def test_jobs_that_found_another_owner_are_not_counted_as_idle() -> None:
    rule = Resubmission()
    rule.refusal(75, 5, 0.0)

    waiting = [rule.refusal(76, 5, float(moment)) for moment in range(2 * MOST_IDLE_JOBS)]

    assert waiting == [None] * len(waiting)
    assert rule.refusal(75, 5, 99.0) is None


_SHOW = "import os; [print(f'{n}={v}') for n, v in sorted(os.environ.items())]"


@pytest.fixture
def traces() -> Iterator[JobTraces]:
    made = JobTraces("HOLDFAST_TEST_CHAOS")
    yield made
    made.kill_all()
    made.remove_files(())


@pytest.mark.process
def test_job_of_chaos_is_alone_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a batch job it would have that job requeued, and `fresh` would begin it anew."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("JOB_ID", "7")
    monkeypatch.setenv("HOLDFAST_CHAIN", "train-1")
    monkeypatch.setenv("HOLDFAST_SEED", "5")
    traces = JobTraces("HOLDFAST_TEST_CHAOS")

    job = Incarnation([sys.executable, "-c", _SHOW], traces, tmp_path)
    job.reap()
    job.stderr.close()

    said = (tmp_path / "stdout.txt").read_text().splitlines()
    assert not [line for line in said if line.startswith(("SLURM_", "JOB_ID", "HOLDFAST_CHAIN"))]
    assert {"HOLDFAST_FRESH=no", "HOLDFAST_SEED=5", traces.mark} <= set(said)
    traces.remove_files([job.pid])


def _end(job: Incarnation) -> int | None:
    job.reap()
    job.stderr.close()
    return job.exit_code


@pytest.mark.process
def test_output_of_the_next_job_is_added_to_that_of_the_last_one(
    traces: JobTraces, tmp_path: Path
) -> None:
    for number in (1, 2):
        line = ["sh", "-c", f"echo job {number}; echo trouble {number} >&2; exit {number}"]
        assert _end(Incarnation(line, traces, tmp_path)) == number

    assert (tmp_path / "stdout.txt").read_text() == "job 1\njob 2\n"
    assert (tmp_path / "stderr.txt").read_text() == "trouble 1\ntrouble 2\n"


@pytest.mark.process
def test_stopped_job_goes_on_and_its_end_by_a_signal_is_negative(
    traces: JobTraces, tmp_path: Path
) -> None:
    job = Incarnation(["sh", "-c", "kill -STOP $$; kill -USR1 $$"], traces, tmp_path)
    os.waitid(os.P_PID, job.pid, os.WSTOPPED | os.WNOWAIT)
    assert job.exit_code is None

    job.go_on()

    assert _end(job) == -signal.SIGUSR1


@pytest.mark.process
def test_job_is_a_session_of_its_own_so_that_ctrl_c_does_not_reach_it(
    traces: JobTraces, tmp_path: Path
) -> None:
    job = Incarnation(["sleep", "600"], traces, tmp_path)

    session = os.getsid(job.pid)

    traces.kill_all()
    assert session == job.pid
    assert _end(job) == -signal.SIGKILL


@pytest.mark.process
def test_command_line_is_that_of_a_user_who_types_run() -> None:
    command = run_command(Path("/out/run"), ("-n", "2", "train.py", "--run-dir", "mine"))

    assert command[0] == sys.executable
    words = ("run", "--run-dir", "/out/run", "-n", "2", "train.py", "--run-dir", "mine")
    assert command[-len(words) :] == words


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[tuple[StderrPipe, int]]:
    pipe = StderrPipe(tmp_path / "stderr.txt")
    descriptor = os.dup(pipe.write_fd)
    pipe.started()
    yield pipe, descriptor
    os.close(descriptor)
    pipe.close()


def test_text_goes_to_the_file(writer: tuple[StderrPipe, int], tmp_path: Path) -> None:
    pipe, descriptor = writer
    os.write(descriptor, b"one\n")
    pipe.drain()
    os.write(descriptor, b"two\n")
    pipe.drain()

    assert (tmp_path / "stderr.txt").read_bytes() == b"one\ntwo\n"


def test_full_pipe_takes_nothing_until_it_is_released(
    writer: tuple[StderrPipe, int], tmp_path: Path
) -> None:
    pipe, descriptor = writer
    os.write(descriptor, b"before\n")
    pipe.fill()
    pipe.drain()
    os.set_blocking(descriptor, False)
    with pytest.raises(BlockingIOError):
        os.write(descriptor, b"x")
    assert not (tmp_path / "stderr.txt").exists()

    pipe.release()
    pipe.drain()
    os.write(descriptor, b"after\n")
    pipe.drain()

    assert (tmp_path / "stderr.txt").read_bytes() == b"before\nafter\n"


def test_descriptor_of_the_job_still_blocks_after_a_fill(writer: tuple[StderrPipe, int]) -> None:
    pipe, descriptor = writer
    pipe.fill()

    assert os.get_blocking(descriptor)


def test_text_that_a_full_pipe_holds_is_not_lost_at_the_end(tmp_path: Path) -> None:
    pipe = StderrPipe(tmp_path / "stderr.txt")
    os.write(pipe.write_fd, b"before\n")
    pipe.fill()
    pipe.started()

    pipe.close()

    assert (tmp_path / "stderr.txt").read_bytes() == b"before\n"
