"""A job whose supervisor is gone, found by its run directory and taken over.

The lease names the agent's socket.  The agent answers with the launch, what it has come to
so far, and the descriptor of the lease.  That is all that a supervisor needs: the next one
decides as the last one would have done.
"""

from __future__ import annotations

import json
import os
import select
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.recovery.event import Launch
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import RunDirectoryBusy
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.own_file import read_at_most
from holdfast.runtime.run.run_directory import LARGEST_LEASE_BYTES, Lease, RunDirectory
from holdfast.runtime.system.channel import FDS, Channel, Message, connect
from holdfast.runtime.system.peer_process import PeerProcess

ANSWERS_WITHIN_S = 15.0
"""An agent that nobody supervises and that says nothing for as long stands still."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """A living agent, and the job as it stands."""

    channel: Channel
    agent: PeerProcess
    config: WorkerConfig
    launch: Launch
    mpiexec: Path
    lease: Lease
    directory: Path
    told: tuple[Message, ...]
    """Events of the launch that the last supervisor has seen, the newest last."""
    is_warm: bool


def find_takeover(run_dir: RunDirectory) -> Takeover | None:
    """Return the job of ``run_dir``, if it lives on this host and nobody supervises it.

    An agent that nobody supervises and that does not answer is killed: its job is over.

    Raises:
        RunDirectoryBusy: somebody supervises it; the message names the process.
    """
    path = _agent_of(run_dir)
    if path is None:
        return None
    try:
        channel = connect(path)
    except OSError:
        return None
    agent = PeerProcess.of(channel)
    if agent is None:
        channel.close()
        return None
    answer = _ask(channel)
    if answer is None:
        agent.kill()
        agent.has_ended(ANSWERS_WITHIN_S)
    elif answer["kind"] == "agent_ready" and answer.get("launch"):
        return _taken(channel, agent, answer)
    agent.close()
    channel.close()
    if answer is not None and answer["kind"] == "supervised":
        raise RunDirectoryBusy(
            f"run directory {run_dir.path} belongs to another job, which pid {answer['pid']} "
            "supervises; wait for it to end, stop it, or choose another --run-dir"
        )
    return None


def _agent_of(run_dir: RunDirectory) -> Path | None:
    try:
        owner = json.loads(read_at_most(run_dir.lease_path, LARGEST_LEASE_BYTES))
        return Path(owner["agent"]) if owner["host"] == os.uname().nodename else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _ask(channel: Channel) -> Message | None:
    """Return the agent's answer; None if there is none."""
    try:
        channel.send({"kind": "supervisor", "takes_over": True}, (1, 2))
    except OSError:
        return {"kind": "gone"}
    if not select.select([channel], [], [], ANSWERS_WITHIN_S)[0]:
        return None
    return channel.receive() or {"kind": "gone"}


def _taken(channel: Channel, agent: PeerProcess, answer: dict[str, Any]) -> Takeover:
    message = answer["launch"]
    config = WorkerConfig.from_json(message["config"])
    workers = tuple(WorkerId(worker) for worker in config.workers)
    launch = Launch(config.generation, workers, message["relaunch"], "taken over", message["spent"])
    return Takeover(
        channel=channel,
        agent=agent,
        config=config,
        launch=launch,
        mpiexec=Path(message["mpi"]["mpiexec"]),
        lease=Lease(answer[FDS][0]),
        directory=Path(answer["directory"]),
        told=tuple(answer["told"]),
        is_warm=bool(answer["warm"]),
    )
