"""A job from its request to its exit code, begun, in a batch system, or taken over."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from supervised import WARM, Agent, completed, joined, setup_in

from holdfast.runtime.batch.schedulers import CHAIN, Allocation, Scheduler
from holdfast.runtime.errors import ExitCode, RunDirectoryBusy, UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.journal import Journal, read_journal
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.supervisor import job_run, supervisor
from holdfast.runtime.supervisor.agent_process import AgentProcess, AgentTerms
from holdfast.runtime.supervisor.batch_job import BatchJob, ChainLink
from holdfast.runtime.supervisor.takeover import StoppedAgentEnded, Takeover
from holdfast.runtime.system import witnessed_time
from holdfast.runtime.system.channel import Listener
from holdfast.runtime.system.processes import HeldProcess

FREE = "the setup of a job that may begin"
ORPHAN = cast(Takeover, "a job without its supervisor")
NOBODY = None
Answer = str | Takeover | Exception | None

RUN = "00112233aabbccdd"
BY_HAND = Allocation(Scheduler.SLURM, "7", chain="", is_batch=False, ends_at=4e9)

IN_BATCH = replace(BY_HAND, chain="slurm 7", is_batch=True)


class Directory:
    """A run directory that answers as a test wants, on a clock of its own."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now, self.sleeps, self.said = 50.0, list[float](), list[str]()
        self.setups: list[Answer] = []
        self.takeovers: list[Answer] = []
        patch.setattr(job_run, "prepare_job", lambda *_: _given(self.setups))
        patch.setattr(job_run, "find_takeover", lambda *_, **__: _given(self.takeovers))
        patch.setattr(job_run, "say", self.said.append)
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        patch.setattr(job_run, "time", clock)
        patch.setattr(witnessed_time, "time", clock)

    def prepare(self, wait_lease_s: float = 0.0) -> object:
        options = JobOptions(Path("train.py"), Path("/run"), wait_lease_s=wait_lease_s)
        return job_run._prepare(options)

    def _sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


def _given(answers: list[Answer]) -> Answer:
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Directory:
    return Directory(monkeypatch)


def test_free_directory_is_taken_at_once(directory: Directory) -> None:
    directory.setups = [FREE]

    assert directory.prepare(wait_lease_s=60.0) == FREE
    assert (directory.sleeps, directory.said) == ([], [])


def test_job_without_its_supervisor_is_taken_over_in_place_of_a_new_one(
    directory: Directory,
) -> None:
    directory.setups = [RunDirectoryBusy("pid 3 has it")]
    directory.takeovers = [ORPHAN]

    assert directory.prepare() == ORPHAN


@pytest.mark.parametrize(
    ("takeover", "words"),
    [(NOBODY, "pid 3 has it"), (RunDirectoryBusy("pid 4 supervises it"), "pid 4 supervises it")],
    ids=["nobody knows more", "its agent knows more"],
)
def test_busy_directory_is_refused_in_the_words_of_who_knows_most(
    directory: Directory, takeover: Answer, words: str
) -> None:
    directory.setups = [RunDirectoryBusy("pid 3 has it")]
    directory.takeovers = [takeover]

    with pytest.raises(RunDirectoryBusy, match=f"^{words}$"):
        directory.prepare()

    assert directory.sleeps == []


def test_busy_directory_is_waited_for_and_that_is_said_once(directory: Directory) -> None:
    directory.setups = [*[RunDirectoryBusy("pid 3 has it")] * 3, FREE]
    directory.takeovers = [NOBODY] * 3

    assert directory.prepare(wait_lease_s=60.0) == FREE

    assert directory.sleeps == [1.0] * 3
    assert directory.said == ["waiting for 60 s at most: pid 3 has it"]


def test_wait_for_a_busy_directory_ends(directory: Directory) -> None:
    directory.setups = [RunDirectoryBusy("pid 3 has it")] * 9
    directory.takeovers = [NOBODY] * 9

    with pytest.raises(RunDirectoryBusy, match="pid 3 has it"):
        directory.prepare(wait_lease_s=5.0)

    assert directory.sleeps == [1.0] * 5


def test_directory_of_an_agent_that_was_ended_is_taken_without_a_wait(
    directory: Directory,
) -> None:
    directory.setups = [RunDirectoryBusy("pid 3 has it"), FREE]
    directory.takeovers = [StoppedAgentEnded("ended the job in /run")]

    assert directory.prepare() == FREE
    assert directory.said == ["ended the job in /run; going on from its newest checkpoint"]


def test_attach_refuses_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no run: it has no RUN.json"):
        job_run.attach(tmp_path)


def test_attach_to_a_run_that_has_completed_nothing_names_the_command_that_begins_it(
    tmp_path: Path,
) -> None:
    journal = Journal(RunDirectory(tmp_path).journal_path, run_id="r", source="test")
    journal.record("launch")
    journal.close()

    with pytest.raises(UsageError, match=r"no job lives in .*; start or resume it with `holdfast"):
        job_run.attach(tmp_path)


def test_attach_to_a_directory_that_was_moved_names_the_one_of_its_run(tmp_path: Path) -> None:
    run, copy = RunDirectory(tmp_path / "run"), tmp_path / "copy"
    run.prepare()
    run.create_record(RunRecord("r", FORMAT, 0.0, microbatches=4, seed=0, threads=1))
    lease = run.acquire_lease()
    listener = Listener(tmp_path / "agent.sock")  # that of the run's own job, which lives
    lease.name_agent(listener.path)
    lease.release()
    shutil.copytree(run.path, copy)

    with pytest.raises(UsageError) as caught:
        job_run.attach(copy)

    assert str(caught.value) == (
        f"no job lives in {copy} on this host without its supervisor; it was moved or copied "
        f"from {run.path}, which holds its run as well"
    )
    listener.close()


def test_attach_that_had_to_end_the_job_names_the_command_that_goes_on(
    directory: Directory, tmp_path: Path
) -> None:
    (tmp_path / "RUN.json").touch()
    directory.takeovers = [StoppedAgentEnded("ended the job in /run")]

    with pytest.raises(UsageError, match=r"^ended the job in /run; go on from .* `holdfast run`$"):
        job_run.attach(tmp_path)


@pytest.mark.parametrize(
    ("free_bytes", "is_used"), [(3 << 24, True), ((3 << 24) - 1, False)], ids=["enough", "too few"]
)
def test_memory_is_used_only_if_it_has_room_for_all_workers_and_spares(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free_bytes: int, *, is_used: bool
) -> None:
    """Workers that find no room there wait for each other for ever."""
    options = JobOptions(Path("train.py"), tmp_path, workers=2, spares=1)
    monkeypatch.setattr(job_run, "_MEMORY", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free_bytes))

    assert job_run._memory_directory(options) == (str(tmp_path) if is_used else None)


def test_system_without_such_a_memory_uses_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(job_run, "_MEMORY", str(tmp_path / "gone"))

    assert job_run._memory_directory(JobOptions(Path("train.py"), tmp_path)) is None


class Started:
    """A job of one launch; the agent and all that is not of this process are stand-ins."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.setup = setup_in(folder)
        self.agent = Agent(WARM, *joined(0, 1), *completed(0, 1))
        self.bases: list[Path] = []
        self.begun: list[subprocess.Popen[bytes]] = []
        self.spoken_to: list[object] = []
        self.dead: tuple[Path, ...] = ()
        patch.setattr(job_run, "_prepare", lambda options: self.setup)
        patch.setattr(job_run, "begin_agent", self._begin)
        patch.setattr(supervisor, "block", lambda: None)
        patch.setattr(job_run, "_memory_directory", lambda options: str(folder))
        patch.setattr(job_run, "remove_dead_directories", lambda *places: self.dead)
        patch.setattr(supervisor, "start_agent", self._start)

    def _begin(self, terms: AgentTerms, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        self.bases.append(terms.directory)
        self.begun.append(subprocess.Popen(["sleep", "600"]))
        return self.begun[-1]

    def _start(
        self, terms: AgentTerms, environment: dict[str, str], begun: object, on_pause: object
    ) -> AgentProcess:
        assert callable(on_pause)
        assert terms.directory == self.bases[-1]
        self.spoken_to.append(begun)
        return AgentProcess(self.agent.ours, cast(HeldProcess, self.agent.process), 10.0)

    def close(self) -> None:
        for process in self.begun:
            process.kill()
            process.wait()
        self.agent.close()
        self.setup.lease.release()


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    made = Started(tmp_path, monkeypatch)
    yield made
    made.close()


def test_job_that_is_done_says_so_and_leaves_no_directory_in_memory(
    started: Started, capfd: pytest.CaptureFixture[str]
) -> None:
    started.dead = (Path("/dev/shm/holdfast-1-aaaaaaaa"),)

    assert job_run.run_job(started.setup.options) == ExitCode.DONE

    (base,) = started.bases
    assert base.parent == started.setup.options.run_dir.parent
    assert not base.exists()
    said = capfd.readouterr().err.splitlines()
    assert said[0].startswith("holdfast: removed /dev/shm/holdfast-1-aaaaaaaa, which a job that")
    assert said[1].startswith("holdfast: starting train.py on 2 workers")
    assert said[-1] == "holdfast: completed step 9, state sha256 cafe"


def test_supervisor_speaks_to_the_agent_that_was_begun_before_it(started: Started) -> None:
    job_run.run_job(started.setup.options)

    assert started.spoken_to == started.begun


def test_system_that_refuses_the_first_agent_is_asked_again_by_the_supervisor(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(terms: AgentTerms, environment: dict[str, str]) -> None:
        started.bases.append(terms.directory)
        raise BlockingIOError("no process to spare")

    monkeypatch.setattr(job_run, "begin_agent", refuse)

    assert job_run.run_job(started.setup.options) == ExitCode.DONE
    assert started.spoken_to == [None]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), OSError("no descriptor to spare")])
def test_job_that_comes_to_no_supervisor_leaves_no_agent_and_no_directory(
    started: Started, monkeypatch: pytest.MonkeyPatch, fault: BaseException
) -> None:
    def fail(*_: object) -> None:
        raise fault

    monkeypatch.setattr(supervisor.SupervisedJob, "of", fail)

    with pytest.raises(type(fault)):
        job_run.run_job(started.setup.options)

    assert [process.returncode for process in started.begun] == [-signal.SIGKILL]
    assert not started.bases[0].exists()
    assert RunDirectory(started.setup.options.run_dir).lease_owner()["ended"] is True


def test_supervisor_that_fails_before_it_speaks_to_its_agent_ends_it(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("the journal")

    monkeypatch.setattr(supervisor.JobConsole, "began", fail)

    with pytest.raises(OSError, match="the journal"):
        job_run.run_job(started.setup.options)

    assert [process.returncode for process in started.begun] == [-signal.SIGKILL]
    assert not started.bases[0].exists()


def test_lease_names_the_agent_for_whoever_takes_the_job_over(started: Started) -> None:
    run_dir = RunDirectory(started.setup.options.run_dir)

    job_run.run_job(started.setup.options)

    assert run_dir.agent_socket() == started.bases[0] / "agent.sock"


def test_link_of_a_chain_begins_before_anything_is_started(started: Started) -> None:
    class Link:
        def begin(self, run_id: str) -> str:
            assert started.bases == []
            return f"incarnation 3 of {run_id}"

    job_run.run_job(started.setup.options, link=cast(Any, Link()))

    records = read_journal(RunDirectory(started.setup.options.run_dir).journal_path)
    (told,) = [record for record in records if record["event"] == "incarnation"]
    assert told["text"] == "incarnation 3 of r"


def test_job_is_taken_over_with_its_own_batch_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process may be outside of it, so its own environment tells nothing."""
    gone_on: list[object] = []
    orphan = Takeover(**dict.fromkeys(Takeover.__dataclass_fields__))  # type: ignore[arg-type]
    monkeypatch.setattr(job_run, "_prepare", lambda options: orphan)
    monkeypatch.setattr(job_run, "batch_of", lambda takeover: ("batch of", takeover))
    monkeypatch.setattr(job_run, "_go_on", lambda *words: gone_on.extend(words))
    options = JobOptions(Path("train.py"), Path("/run"))

    job_run.run_job(options)

    assert gone_on == [orphan, options, ("batch of", orphan), None]


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    run = RunRecord(RUN, 1, 0.0, microbatches=4, seed=0, threads=1)
    RunDirectory(tmp_path).create_record(run)
    (tmp_path / "train.py").write_text("train()")
    return JobOptions(script=tmp_path / "train.py", run_dir=tmp_path, fresh=True)


@pytest.mark.parametrize(
    ("allocation", "fresh"),
    [(BY_HAND, [True, True, True]), (replace(BY_HAND, chain="slurm 7"), [True])],
    ids=["typed in a shell of salloc", "batch job"],
)
def test_job_that_a_person_starts_is_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    options: JobOptions,
    allocation: Allocation,
    fresh: list[bool],
) -> None:
    started: list[bool] = []

    def run_job(
        asked: JobOptions, batch: BatchJob, link: ChainLink | None = None, **_: object
    ) -> ExitCode:
        started.append(asked.fresh)
        assert batch.incarnation == "Slurm job 7"
        if link is not None:
            link.begin(RUN)
        return ExitCode.DONE

    monkeypatch.setattr(job_run, "run_job", run_job)

    codes = [job_run.run_batch_job(options, allocation) for _ in range(3)]

    assert (codes, started) == ([ExitCode.DONE] * 3, fresh)


class Runs:
    """Stands in for the job: ends with a code or an error, and notes what it was asked for."""

    def __init__(self, patch: pytest.MonkeyPatch, end: ExitCode | Exception) -> None:
        self.end, self.asked, self.said = end, list[JobOptions](), list[str]()
        self.hits_limit = False
        patch.setattr(job_run, "run_job", self._run)
        patch.setattr(job_run, "say", self.said.append)

    def _run(self, asked: JobOptions, batch: BatchJob, link: ChainLink) -> ExitCode:
        self.asked.append(asked)
        if isinstance(self.end, Exception):
            raise self.end
        if self.hits_limit:
            batch.repeats(signal.SIGUSR1, is_stopping=False, now=0.0)
        batch.incarnation = link.begin(RUN)
        return self.end


def test_job_of_a_complete_run_has_nothing_to_do_and_says_so(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions
) -> None:
    runs = Runs(monkeypatch, ExitCode.DONE)

    codes = [job_run.run_batch_job(options, IN_BATCH) for _ in range(2)]

    assert codes == [ExitCode.DONE] * 2
    assert len(runs.asked) == 1
    assert runs.said == [f"the run in {options.run_dir} is complete: Slurm job 7 has nothing to do"]


def test_job_after_one_that_stopped_early_goes_on_with_its_run(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions
) -> None:
    runs = Runs(monkeypatch, ExitCode.STOPPED_EARLY)

    codes = [job_run.run_batch_job(options, IN_BATCH) for _ in range(2)]

    assert codes == [ExitCode.STOPPED_EARLY] * 2
    assert [asked.fresh for asked in runs.asked] == [True, False]
    assert runs.said == [
        "--fresh began this run with the first incarnation; this one goes on with it"
    ]


@pytest.mark.parametrize("is_chain", [True, False])
def test_link_leaves_a_run_alone_that_another_link_still_has(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions, *, is_chain: bool
) -> None:
    """Of a single job it is an error that its user must see."""
    runs = Runs(monkeypatch, RunDirectoryBusy("pid 3 has it"))
    if is_chain:
        monkeypatch.setenv(CHAIN, "mine")
    else:
        monkeypatch.delenv(CHAIN, raising=False)

    if is_chain:
        assert job_run.run_batch_job(options, IN_BATCH) == ExitCode.RUN_DIRECTORY_BUSY
        assert runs.said == ["pid 3 has it; Slurm job 7 leaves it alone"]
    else:
        with pytest.raises(RunDirectoryBusy, match="pid 3 has it"):
            job_run.run_batch_job(options, IN_BATCH)


@pytest.mark.parametrize(("hits_limit", "code"), [(True, 99), (False, ExitCode.STOPPED_EARLY)])
def test_job_that_its_limit_stops_gets_the_exit_code_of_its_batch_system(
    monkeypatch: pytest.MonkeyPatch, options: JobOptions, code: int, *, hits_limit: bool
) -> None:
    runs = Runs(monkeypatch, ExitCode.STOPPED_EARLY)
    runs.hits_limit = hits_limit
    job = Allocation(Scheduler.SGE, "5", chain="sge 5", requeue_code=99)

    assert job_run.run_batch_job(options, job) == code
