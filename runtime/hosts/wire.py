"""What the head and the agent of another host say to each other on their connection.

First the agent answers a `Question` with `HostFacts`: what the host is like before it gets a job.
Later they say the messages of `host_messages`, beside those of the connection itself.  State and
gradients never travel here.

The head's own host is asked by a call.  No heavy library is imported: versions are those of the
installed distributions, and processors and devices are read from the kernel.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import JobError
from holdfast.runtime.host.host_messages import Down, Up
from holdfast.runtime.host.launchers import identify
from holdfast.runtime.run.numerics import Numerics, cpu_fields, cpu_flags
from holdfast.runtime.run.program import Program
from holdfast.runtime.run.worker_logs import LogText
from holdfast.runtime.system.channel import MessageKinds
from holdfast.runtime.system.devices import Devices, find_devices
from holdfast.runtime.system.network import (
    Interface,
    Meeting,
    Reached,
    interfaces,
    own_name,
    reach,
)
from holdfast.runtime.system.own_process import usable_cores
from holdfast.runtime.system.signals import blocked
from holdfast.runtime.system.witnessed_time import Bound

ANSWERS_WITHIN_S = 60.0
"""For a host that is asked: a cold file system may take most of it."""

_SHARED_WITHIN_S = 5.0
"""For a file that was just written to be seen on another host."""

_MODEL_OF_ARM = ("CPU implementer", "CPU part", "CPU variant")
_MEMORY = "/dev/shm"
_HOLDFAST = Path(__file__).parents[2]

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Question:
    """What all hosts of a job are asked."""

    cwd: Path
    script: Path | None
    """None if there is no job yet."""
    proof: Path
    """A file in the run directory with a token that no other directory has: the lease of a job."""
    token: str
    mpiexec: Path
    meetings: tuple[Meeting, ...] = ()
    """Where the head listens, to see who reaches it."""
    word: str = ""
    """What the head says there."""


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host as it is just now.

    Attributes:
        identity: the same for two names of one host.
        cores: those that its workers may use.
        memory, shm_free: bytes of the host, and those that are free in ``/dev/shm``.
        devices: the accelerators that its workers may use.
        processor: its model, "" if the kernel does not tell.
        flags: what the processor can compute with; none if the kernel does not tell.
        versions: of each library by its name, "" if it is not installed.
        distributions: the version of each one that is installed, by its name.
        program: the digests of the script and the user's modules that it imports, by their paths.
        has_cwd: whether the working directory of the job is there.
        has_token: whether the proof is there: the run directory is that of the head.
        clock: seconds since 1970.
        interfaces: the addresses of the host.
        reached: the meetings of the head that the host reaches.
    """

    identity: str
    cores: int
    memory: int
    shm_free: int
    devices: Devices
    processor: str
    flags: frozenset[str]
    versions: Mapping[str, str]
    program: Mapping[str, str]
    has_cwd: bool
    has_token: bool
    clock: float
    interfaces: tuple[Interface, ...]
    reached: tuple[Reached, ...] = ()
    distributions: Mapping[str, str] = field(default_factory=dict)


TEXT = "latin-1"
"""Any bytes are text in this encoding."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first message of a head to a host that may work: all that it must know."""

    host: str
    environment: Mapping[str, str]
    directory: str
    heartbeat_timeout_s: float
    preload: tuple[str, ...]
    entry: str
    verbose: bool = False
    umask: int = 0o022


@dataclass(frozen=True, slots=True)
class Unasked:
    """Nothing has come to the agent, or no message: its shell passes no stdin on."""


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of the head, which has ``heard`` this answer last."""

    number: int
    heard: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping."""

    number: int


@dataclass(frozen=True, slots=True)
class Changes:
    """The words of a worker's status that have changed."""

    generation: int
    worker: WorkerId
    words: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Words:
    """What has changed in statuses, at this time of the sender's monotonic clock."""

    of: tuple[Changes, ...]
    clock: float


@dataclass(frozen=True, slots=True)
class Output:
    """Lines for a stream of the head."""

    fd: int
    lines: str


@dataclass(frozen=True, slots=True)
class Taken:
    """So much output has been read."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class EndHost:
    """The agent ends its workers and itself."""

    why: str = "the job has ended"


Opening = Question | Greeting | EndHost
"""What the head says to an agent that it has started."""
Answer = HostFacts | Unasked
"""What the agent says to that."""
FromHead = Down | Ping | Words | Taken | EndHost
FromHost = Up | Pong | Words | Output
"""What both say from the greeting on."""

OPENING: MessageKinds[Opening] = MessageKinds(Opening)
ANSWER: MessageKinds[Answer] = MessageKinds(Answer)
FROM_HEAD: MessageKinds[FromHead] = MessageKinds(FromHead)
FROM_HOST: MessageKinds[FromHost] = MessageKinds(FromHost)


def taken_bytes(message: FromHost) -> int:
    """Return how much output of workers a message carries, for a stream or for log files."""
    match message:
        case Output(lines=lines) | LogText(lines=lines):
            return len(lines)
    return 0


def facts(question: Question) -> HostFacts:
    """Return what this host says."""
    own = interfaces()
    with ThreadPoolExecutor(max_workers=len(question.meetings) + 1) as pool:
        with blocked():  # signals are for the main thread
            trials = [
                pool.submit(reach, meeting, own, question.word) for meeting in question.meetings
            ]
            token = pool.submit(_has_token, question)
        reached = tuple(found for trial in trials if (found := trial.result()) is not None)
        return HostFacts(
            identity=_identity(),
            cores=usable_cores(),
            memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            shm_free=_or(0, lambda: shutil.disk_usage(_MEMORY).free),
            devices=find_devices(os.environ),
            processor=_processor(),
            flags=cpu_flags(),
            versions=versions(question.mpiexec),
            program={} if question.script is None else _program(question.script),
            has_cwd=question.cwd.is_dir(),
            has_token=token.result(),
            clock=time.time(),
            interfaces=own,
            reached=reached,
            distributions=_distributions(),
        )


def versions(mpiexec: Path) -> dict[str, str]:
    """Return the version of everything that must be the same on all hosts of a job."""
    here = Numerics.here(threads=1)
    try:
        library = identify(mpiexec)
        mpi = f"{library.name} {library.version}"
    except JobError:
        mpi = ""
    return {
        "Python": here.python,
        "holdfast": f"{here.holdfast} ({_digest_of_holdfast()})",
        "numpy": here.numpy,
        "tensorflow": here.tensorflow,
        "keras": here.keras,
        "mpi4py": _or("", lambda: metadata.version("mpi4py")),
        "MPI": mpi,
    }


def _digest_of_holdfast() -> str:
    """Return a digest of all source files: a checkout has one version for all of its states."""
    digest = hashlib.sha256()
    for path in sorted(_HOLDFAST.rglob("*.py")):
        digest.update(str(path.relative_to(_HOLDFAST)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:8]


def _has_token(question: Question) -> bool:
    """Return whether this host sees the proof, a moment after it was written."""
    bound = Bound(_SHARED_WITHIN_S)
    while True:
        content = _or(b"", question.proof.read_bytes)
        if question.token.encode() in content or bound.has_passed:
            return question.token.encode() in content
        time.sleep(0.05)


def _program(script: Path) -> dict[str, str]:
    found = Program.of(script)
    return found.modules | ({str(script): found.script_sha256} if found.script_sha256 else {})


def _distributions() -> dict[str, str]:
    """Return the version of each distribution that an import would find, by its name."""
    found: dict[str, str] = {}
    for one in metadata.distributions():
        found.setdefault(str(one.metadata["Name"]).lower(), one.version)
    return found


def _processor() -> str:
    """Return the model of the processor: by its name, or by ARM's numbers."""
    found = cpu_fields()
    numbers = [found[name] for name in _MODEL_OF_ARM if name in found]
    return found.get("model name") or " ".join(numbers)


def _identity() -> str:
    """Return what two names of one host have in common: its boot and its network namespace."""
    boot = _or("", lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    return f"{boot or own_name()} {_or(0, lambda: os.stat('/proc/self/ns/net').st_ino)}"


def _or(otherwise: _Found, ask: Callable[[], _Found]) -> _Found:
    """Return what was asked for, or ``otherwise`` where the host does not say."""
    try:
        return ask()
    except (OSError, metadata.PackageNotFoundError):
        return otherwise
