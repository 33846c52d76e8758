"""A supervisor in this process, with agents that have said all their words beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from configs import worker_config

from holdfast.recovery.event import Launch
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.journal import HistoryReader, Journal
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.supervisor.agent_process import AgentProcess, AgentTerms
from holdfast.runtime.supervisor.job_log import JobConsole
from holdfast.runtime.supervisor.job_setup import JobSetup
from holdfast.runtime.supervisor.supervisor import Supervisor
from holdfast.runtime.supervisor.takeover import Takeover
from holdfast.runtime.system.channel import Message, pair
from holdfast.runtime.system.processes import HeldProcess

WARM = {"kind": "agent_ready", "warm": True}
COLD = {"kind": "agent_ready", "warm": False}
ENDED = {"kind": "launch_ended", "words": ""}


def report(worker: int, kind: str, **fields: Any) -> Message:
    return {"kind": "worker_report", "worker": worker, "report": {"kind": kind, **fields}}


def joined(*workers: int) -> list[Message]:
    return [report(worker, "joined") for worker in workers]


def exited(worker: int, *, is_clean: bool = False) -> Message:
    end = {"kind": "worker_exited", "worker": worker, "clean": is_clean, "cause": "signal SIGKILL"}
    return end | {"step": 3, "phase": "training"}


def completed(*workers: int) -> list[Message]:
    """Return the words of workers that train to the end and leave."""
    told = [
        report(worker, "complete", step=9, sha256="cafe", is_first=worker == workers[0])
        for worker in workers
    ]
    return [*told, *(exited(worker, is_clean=True) for worker in workers), ENDED]


class FakeProcess:
    """The process of an agent, which ends as soon as anybody looks."""

    pid = 4711

    def __init__(self) -> None:
        self.is_killed = False

    def kill(self) -> None:
        self.is_killed = True

    def has_ended(self, within_s: float) -> bool:
        return True

    def close(self) -> None: ...


class Agent:
    """An agent that has said all its words before anybody listens."""

    def __init__(self, *messages: Message, dies: bool = False) -> None:
        self.ours, self._theirs = pair()
        self.process = FakeProcess()
        self._told: list[Message] = []
        for message in messages:
            self._theirs.post(message)
        if dies:
            self._theirs.close()

    @property
    def told(self) -> list[Message]:
        """What it was told, without the questions whether it lives."""
        while fresh := self._theirs.drain():
            self._told += fresh
            self.ours.flush()
        return [message for message in self._told if message["kind"] != "ping"]

    @property
    def kinds(self) -> list[str]:
        return [message.get("what", message["kind"]) for message in self.told]

    def close(self) -> None:
        self.ours.close()
        self._theirs.close()


def setup_in(folder: Path, **options: Any) -> JobSetup:
    """Return the setup of a job of two workers that begins a run in this folder."""
    script, directory = folder / "train.py", RunDirectory(folder / "run")
    script.touch()
    directory.prepare()
    record = RunRecord("r", 1, 0.0, microbatches=2, seed=0, threads=1)
    directory.create_record(record)
    path = directory.journal_path
    return JobSetup(
        options=JobOptions(script, directory.path, **({"workers": 2} | options)),
        record=record,
        mpiexec=Path("/opt/mpiexec"),
        mpi_library="Open MPI",
        journal=Journal(path, run_id="r", source="supervisor"),
        lease=directory.acquire_lease(),
        first_generation=1,
        preload=("numpy",),
        environment={},
        is_resumed=False,
        warning=None,
        key_file=None,
        history=HistoryReader(path),
        cwd=Path("/work"),
    )


class Job:
    """A supervisor of two workers, unless the options say otherwise."""

    def __init__(self, folder: Path, agents: list[Agent], **options: Any) -> None:
        self.base = folder / "base"
        batch, takes_over = options.pop("batch", None), options.pop("takes_over", None)
        self.setup = setup_in(folder, **options)
        self.directory = RunDirectory(self.setup.options.run_dir)
        self.agents, self.said, self.terms = agents, b"", list[AgentTerms]()
        self._waiting = iter(agents)
        voice = JobConsole(self.setup.journal, is_verbose=False, write=self._hear)
        takeover = None if takes_over is None else self._takeover(takes_over)
        self.supervisor = Supervisor(self.setup, self.base, voice, takeover, batch)
        self._is_closed = False

    def _takeover(self, launch: Launch) -> Takeover:
        agent = next(self._waiting)
        return Takeover(
            channel=agent.ours,
            agent=cast(HeldProcess, agent.process),
            config=worker_config(),
            launch=launch,
            mpiexec=Path("/opt/mpiexec"),
            mpi_library="Open MPI",
            lease=self.setup.lease,
            directory=self.base,
            cwd=Path("/work"),
            environment={},
            told=tuple(joined(*launch.workers)),
            is_warm=True,
        )

    def start_agent(
        self, terms: AgentTerms, environment: dict[str, str], begun: object, on_pause: object
    ) -> AgentProcess:
        self.terms.append(terms)
        agent = next(self._waiting)
        return AgentProcess(agent.ours, cast(HeldProcess, agent.process), 10.0)

    def _hear(self, lines: bytes) -> None:
        self.said += lines

    def begin(self, *messages: Message) -> None:
        """Begin the job, and let it hear messages, without its loop."""
        self.supervisor._obey(self.supervisor._machine.start())
        for message in messages:
            self.supervisor._on_message(message)

    def poll(self, seconds: int, *, hears: bool) -> None:
        """Let time pass by, a look each second."""
        start = self.supervisor._looked_at
        for number in range(1, seconds + 1):
            if hears:
                self.supervisor._on_message({"kind": "pong"})
            self.supervisor._look(start + number)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.supervisor.close()
            self.supervisor.signals.restore()
            self.setup.journal.close()
            self.setup.lease.release()
