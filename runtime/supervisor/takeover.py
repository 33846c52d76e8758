"""A job whose supervisor is gone, found by its run directory and taken over.

The lease names the agent's socket.  The agent answers with the launch, what it has come to
so far, and the descriptor of the lease.  That is all that a supervisor needs: the next one
decides as the last one would have done.
"""

from __future__ import annotations

import contextlib
import select
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.recovery.event import Launch
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import RunDirectoryBusy
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import FDS, Channel, Message, connect
from holdfast.runtime.system.codec import from_plain
from holdfast.runtime.system.processes import HeldProcess, is_alive, is_stopped
from holdfast.runtime.system.witnessed_time import Bound

ANSWERS_WITHIN_S = 15.0
"""A busy machine may need that long."""


_ENDS_WITHIN_S = 10.0

_REFUSALS = {
    "supervised": "another job, which pid {pid} supervises; wait for it to end, stop it, or "
    "choose another --run-dir",
    "needs_nobody": "a job that pid {pid} supervises; it needs no `holdfast attach`, and "
    "`holdfast report` shows how it goes",
    "silent": "a job whose agent, pid {pid}, does not answer; let it go on (kill -CONT {pid}) or "
    "end it (kill -KILL {pid}), then run again",
    "agent_ready": "a job that has just lost its supervisor, before its first launch; run again "
    "in a minute",
}


class StoppedAgentEnded(Exception):
    """A job had neither a supervisor nor an agent that runs, so it was ended; the message says it.

    Nobody could have taken it over, and nobody watched it.
    """


@dataclass(frozen=True, slots=True)
class Takeover:
    """A living agent, and the job as it stands."""

    channel: Channel
    agent: HeldProcess
    config: WorkerConfig
    launch: Launch
    mpiexec: Path
    mpi_library: str
    lease: Lease
    directory: Path
    cwd: Path
    environment: dict[str, str]
    """What the job was started in, and with; the same for what is started from now on."""
    told: tuple[Message, ...]
    """Events of the launch that the last supervisor has seen, the newest last."""
    is_warm: bool


def find_takeover(run_dir: RunDirectory, asked: JobOptions | None = None) -> Takeover | None:
    """Return the job of ``run_dir``, if it lives on this host and nobody supervises it.

    A request of another script, or for a fresh run, takes no job over.

    Raises:
        RunDirectoryBusy: it has its supervisor, its agent does not answer, or it is another
            job than was asked for; the message names the process, and what to do.
        StoppedAgentEnded: it had no supervisor, and its agent was stopped; both are gone now.
    """
    path = run_dir.agent_socket()
    if path is None:
        return None
    try:
        channel = connect(path)
    except OSError:
        return None
    agent = HeldProcess.of_peer(channel)
    if agent is None:
        channel.close()
        return None
    answer = _ask(channel, asked)
    if answer["kind"] == "agent_ready" and answer.get("launch"):
        return _taken(channel, agent, answer)
    is_ended = answer["kind"] == "silent" and _end_if_stopped(agent, run_dir)
    agent.close()
    channel.close()
    if is_ended:
        raise StoppedAgentEnded(
            f"ended the job in {run_dir.path}: it had no supervisor, and its agent, pid "
            f"{agent.pid}, was stopped"
        )
    if answer["kind"] == "gone":
        return None
    if answer["kind"] == "another_job" and asked is not None:
        raise RunDirectoryBusy(another_job(run_dir, answer["job"], asked))
    kind = "needs_nobody" if asked is None and answer["kind"] == "supervised" else answer["kind"]
    why = _REFUSALS[kind].format(pid=answer.get("pid", agent.pid))
    raise RunDirectoryBusy(f"run directory {run_dir.path} belongs to {why}")


def another_job(run_dir: RunDirectory, its: list[Any], asked: JobOptions) -> str:
    """Return in words how the request differs from the job that lives; ``its`` as `_ask` asks."""
    _, script, *argv = its
    if asked.fresh:
        difference = "which --fresh would set aside"
    elif script != str(asked.script):
        difference = f"which runs another script, {script}"
    else:
        wanted, had = (shlex.join(words) or "none" for words in (asked.argv, argv))
        difference = f"which has other arguments of the script (its: {had}; asked for: {wanted})"
    return (
        f"run directory {run_dir.path} belongs to a job whose supervisor is gone, and "
        f"{difference}; "
        f"take the job over with `holdfast attach {shlex.quote(str(run_dir.path))}`, or choose "
        "another --run-dir"
    )


def _end_if_stopped(agent: HeldProcess, run_dir: RunDirectory) -> bool:
    """Kill an agent that is stopped and that no supervisor watches; its workers die with it.

    A batch system that suspends a job stops the supervisor as well, which then still lives.
    """
    try:
        supervisor = int(run_dir.lease_owner()["pid"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if is_alive(supervisor) or not is_stopped(agent.pid):
        return False
    agent.kill()
    return agent.has_ended(_ENDS_WITHIN_S)


def _ask(channel: Channel, asked: JobOptions | None) -> Message:
    """Return the agent's answer; its kind is ``silent`` or ``gone`` if there is none."""
    job = None if asked is None else [asked.fresh, str(asked.script), *asked.argv]
    with contextlib.suppress(OSError):  # it may have answered and closed already
        channel.send({"kind": "supervisor", "takes_over": True, "job": job}, (1, 2))
    bound = Bound(ANSWERS_WITHIN_S)
    if not bound.wait(lambda left_s: select.select([channel], [], [], left_s)[0]):
        return {"kind": "silent"}
    try:
        return channel.receive() or {"kind": "gone"}
    except OSError:
        return {"kind": "gone"}


def _taken(channel: Channel, agent: HeldProcess, answer: dict[str, Any]) -> Takeover:
    message = answer["launch"]
    config = from_plain(WorkerConfig, message["config"])
    workers = tuple(WorkerId(worker) for worker in config.workers)
    launch = Launch(config.generation, workers, message["relaunch"], "taken over", message["spent"])
    return Takeover(
        channel=channel,
        agent=agent,
        config=config,
        launch=launch,
        mpiexec=Path(message["mpi"]["mpiexec"]),
        mpi_library=message["mpi"]["library"],
        lease=Lease(answer[FDS][0]),
        directory=Path(answer["directory"]),
        cwd=Path(answer["cwd"]),
        environment=answer["environment"],
        told=tuple(answer["told"]),
        is_warm=bool(answer["warm"]),
    )
