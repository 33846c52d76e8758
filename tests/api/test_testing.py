"""Jobs in tests: what they are asked for, what becomes of them, and that nothing of them stays."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from journal_entries import WrittenJournal

from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.processes import is_alive
from holdfast.testing import JobRequest, run_job, start_job

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "02_custom_replica.py"
SMALL = ("--samples", "40", "--global-batch", "10", "--epochs", "2")
ENDLESS = ("--samples", "40", "--global-batch", "10", "--epochs", "1000000")


def test_a_request_becomes_a_command_line_which_knows_what_is_omitted() -> None:
    request = JobRequest(
        script="train.py",
        run_dir="runs/1",
        workers=3,
        microbatches=6,
        faults=["kill worker=1 step=3", "exit worker=0 step=4"],
        argv=["--epochs", "2"],
        options=["--spares", "1"],
    )

    lines = [one.command() for one in (request, JobRequest(script=Path("a b.py"), run_dir="r"))]

    assert [line[line.index("run") :] for line in lines] == [
        [
            *("run", "-n", "3", "--run-dir", "runs/1", "--microbatches", "6"),
            *("--inject", "kill worker=1 step=3", "--inject", "exit worker=0 step=4"),
            *("--spares", "1", "--", "train.py", "--epochs", "2"),
        ],
        ["run", "-n", "1", "--run-dir", "r", "--", "a b.py"],
    ]


@pytest.mark.mpi
def test_a_job_tells_what_became_of_it(tmp_path: Path) -> None:
    job = run_job(
        EXAMPLE,
        run_dir=tmp_path,
        workers=2,
        microbatches=2,
        faults=["kill worker=1 step=3"],
        argv=SMALL,
    )

    assert job.exit_code == 0, job.stderr
    assert "worker 1 died" in job.stderr
    assert "step 8 " in job.stdout
    assert [failure.worker for failure in job.report.failures] == [1]
    assert job.events("fault")[0]["step"] == 3
    assert job.sha256 == job.events("completed")[0]["sha256"]
    assert job.leftovers == ()


@pytest.mark.mpi
def test_processes_of_a_job_have_names_and_can_be_signalled(tmp_path: Path) -> None:
    request = JobRequest(script=EXAMPLE, run_dir=tmp_path, workers=2, argv=ENDLESS)

    with start_job(request) as running:
        running.wait_for("step", step=2)
        running.signal(signal.SIGKILL, "holdfast-w1")
        failure = running.wait_for("failure")
        names = set(running.processes().values())
        with pytest.raises(ProcessLookupError, match="holdfast-w7"):
            running.signal(signal.SIGKILL, "holdfast-w7")

    assert failure["worker"] == 1
    assert {"holdfast-agent", "holdfast-pool", "holdfast-w0"} <= names


@dataclass(frozen=True, kw_only=True)
class ShellRequest(JobRequest):
    """A shell that stands for ``holdfast run``: the job's marks, files and end are real."""

    script: Path | str = "train.py"
    shell: str

    def command(self) -> list[str]:
        """Return the shell's command line."""
        return ["sh", "-c", self.shell]


@pytest.mark.process
def test_outcome_of_a_job_has_its_code_and_all_that_it_has_written(tmp_path: Path) -> None:
    shell = "pwd; printf 'step 1\\n\\377'; echo $A >&2; exit 3"
    request = ShellRequest(run_dir="run", directory=tmp_path, environment={"A": "oh"}, shell=shell)

    with start_job(request) as running:
        job = running.wait()

    wanted = (3, f"{tmp_path}\nstep 1\n\ufffd", "oh\n")
    assert (job.exit_code, job.stdout, job.stderr) == wanted
    assert (job.journal, job.sha256, job.leftovers) == ((), None, ())


def _journal(run_dir: Path, *events: tuple[str, int]) -> None:
    journal = WrittenJournal(RunDirectory(run_dir).journal_path, run_id="r", source="test")
    for event, step in events:
        journal.record(event, samples=4, seconds=0.1, step=step)


@pytest.mark.process
def test_record_is_waited_for_by_its_event_and_its_fields(tmp_path: Path) -> None:
    _journal(tmp_path, ("step", 1), ("warning", 2), ("step", 2), ("step", 3))

    with start_job(ShellRequest(run_dir=tmp_path, shell="exit 0")) as running:
        assert running.wait_for("step")["step"] == 1
        found = running.wait_for("step", step=2, source="test")
        job = running.wait()

    assert (found["event"], found["step"]) == ("step", 2)
    assert [record["step"] for record in job.events("step")] == [1, 2, 3]
    assert job.events("epoch") == []


@pytest.mark.process
def test_wait_for_what_never_comes_ends_with_the_story_of_the_job(tmp_path: Path) -> None:
    _journal(tmp_path, *(("step", step) for step in range(1, 8)))

    with start_job(ShellRequest(run_dir=tmp_path, shell="echo oh >&2")) as running:
        running.wait()
        with pytest.raises(TimeoutError) as end:
            running.wait_for("step", step=9)

    story = str(end.value)
    assert story.startswith("no step {'step': 9} in the journal; alive: nothing; the end of its")
    assert "\noh\n" in story
    assert "'step': 3}" in story
    assert "'step': 2}" not in story


@pytest.mark.process
def test_time_of_a_job_is_up_for_every_wait(tmp_path: Path) -> None:
    request = ShellRequest(run_dir=tmp_path, shell="exec sleep 600")

    with start_job(request, timeout_s=0.0) as running:
        with pytest.raises(TimeoutError, match="no step"):
            running.wait_for("step")
        assert is_alive(running.pid)
        with pytest.raises(TimeoutError, match=r"^the job did not end in 0\.0 s; alive: "):
            running.wait()

    assert not is_alive(running.pid)


@pytest.mark.process
def test_signal_goes_to_the_client_unless_another_process_is_named(tmp_path: Path) -> None:
    request = ShellRequest(run_dir=tmp_path, shell="sleep 600; kill -USR1 $$")

    with start_job(request) as running:
        while "sleep" not in running.processes().values():
            assert is_alive(running.pid)
        with pytest.raises(ProcessLookupError, match=r"no process 'nobody' among {.*sleep"):
            running.signal(signal.SIGKILL, "nobody")
        running.signal(signal.SIGKILL, "sleep")
        assert running.wait().exit_code == -signal.SIGUSR1


@pytest.mark.process
def test_all_that_a_job_leaves_is_named_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.testing.ENDS_WITHIN_S", 0.0)
    shell = "echo $TMPDIR; touch $TMPDIR/forgotten; sleep 600 &"

    with start_job(ShellRequest(run_dir=tmp_path, shell=shell)) as running:
        job = running.wait()

    process, file = job.leftovers
    temporary = Path(job.stdout.strip())
    assert process.startswith("process ")
    assert file == str(temporary / "forgotten")
    assert not is_alive(int(process.split()[1]))
    assert not temporary.exists()
    running.close()  # a second time is harmless
