"""The batch script that ``holdfast sbatch`` submits, and the calls of Slurm's own programs.

The last line of the script is ``exec holdfast run …``: so the batch shell *is* the client.
It gets the signals that Slurm sends to the batch shell alone (``--signal=B:…``), which a shell
would keep to itself until its child has ended.

A controller that is down or busy lets its clients wait for minutes.  So each call has a time
limit, and none may stop a job.  Times are read as people and batch systems write them.

An allocation with ``--no-kill`` goes on without a lost node, and be it the one of the batch script.
Then nothing of the job runs, but it keeps its other nodes until its limit.  Slurm (22.05) leaves it
so, even when the lost node is back.  So a host that has lost the head asks Slurm whether the
script's node is still one of the job's (`bring_back`).  When it was given up, the host has the job
requeued.  Where sites switch that off, it ends the job, and the next one of a chain begins.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.batch.schedulers import CHAIN, Scheduler, expand_hosts, find_allocation
from holdfast.runtime.errors import UsageError
from holdfast.runtime.system.own_process import answer_of

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)")
_CLOCK = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)")
_FORMS = 'give seconds (5400), a time with its unit ("90min", "2h") or hours:minutes:seconds'

ANSWERS_WITHIN_S = 8.0
_SUBMITS_WITHIN_S = 60.0

_LOOK_S = 5.0
_LOOKS = 240
"""After much more than Slurm's ``SlurmdTimeout`` the head has ended by something else."""

_WAIT_FOR_LEASE_S = 120
"""How long a link waits for the processes of the link before it."""

_FORGET_STEP = "unset SLURM_STEP_ID SLURM_STEP_NUM_TASKS"
"""sbatch hands on the variables of the step that it was called in, as by ``srun --pty bash``."""

_NONE = "(null)"
_TERMS = ("--partition", "--account", "--qos", "--time", "--constraint")
_TERMS_SHOWN = "%P|%a|%q|%l|%f"
"""Terms of a job that decide on which nodes it may run, and squeue's letters for them."""

_SHORTEST = len("--de")
"""sbatch takes each long option by its first letters, too, and refuses ambiguous ones itself."""

_NAMES = ("-J", "--job-name")
_DEPENDENCIES = ("-d", "--dependency")
_NO_REQUEUE = "--no-requeue"
_NODES = ("-N", "--nodes")
_NO_KILL = ("-k", "--no-kill")
_TASKS = ("-n", "--ntasks")
_CORES = ("-c", "--cpus-per-task")
_REFUSED = {
    ("-a", "--array"): "all its tasks would have one run directory; submit a job for each, "
    "with a --run-dir of its own",
    (":", "hetjob"): "holdfast has the first component of a heterogeneous job alone; submit one",
    ("-D", "--chdir"): "script and run directory are meant from the directory of this command; "
    "go there first",
}
_NOT_SUBMITTING = ("-W", "--wait", "--wrap", "--test-only")
"""With these sbatch waits for the job's end, takes another script, or submits nothing."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What becomes a batch script.

    Attributes:
        sbatch: options of sbatch, as the user typed them.
        run: what follows ``holdfast run``, as the user typed it.
        run_dir: where the run lives; its name is part of the job's.
        programs: the directory of the ``holdfast`` command.
        chain: the number of links, None for one job that is requeued.
        requeues: whether the job asks Slurm to requeue it.
        workers: the workers and spares that the user has asked for, None if Slurm's tasks count.
    """

    sbatch: tuple[str, ...]
    run: tuple[str, ...]
    run_dir: Path
    programs: Path
    chain: int | None = None
    requeues: bool = False
    workers: int | None = None

    def __post_init__(self) -> None:
        """Refuse what would make no chain, or no script."""
        if self.chain is not None and self.chain < 1:
            raise UsageError(f"--chain must be at least 1, got {self.chain}")
        if self.chain is not None and _is_given(_DEPENDENCIES, self.sbatch):
            raise UsageError(
                "--chain makes its links wait for each other by --dependency=singleton; "
                "leave --dependency out"
            )
        for option in _NOT_SUBMITTING:
            if _is_given((option,), self.sbatch):
                raise UsageError(f"holdfast sbatch submits and returns; leave {option} out")
        for names, reason in _REFUSED.items():
            if _is_given(names, self.sbatch):
                raise UsageError(f"leave {' and '.join(names)} out: {reason}")
        if self.requeues and self.chain is None and _is_given((_NO_REQUEUE,), self.sbatch):
            raise UsageError(
                "sbatch's --no-requeue forbids what the job would ask for at its time limit; "
                "give --no-requeue after `run` as well, or use --chain"
            )
        broken = [word for word in (*self.sbatch, *self.run) if "\n" in word or "\0" in word]
        if broken:
            raise UsageError(f"{broken[0]!r} has several lines; a batch script cannot hold it")

    @property
    def warning(self) -> str | None:
        """What is likely to be a mistake, None if nothing is."""
        tasks = _number(_TASKS, self.sbatch)
        if self.workers is None or tasks is None:
            return None
        cores = tasks * (_number(_CORES, self.sbatch) or 1)
        if self.workers <= cores:
            return None
        return (
            f"{self.workers} workers will share {cores} cores: --ntasks is {tasks}. "
            "Leave -n out after `run`, and each task is a worker"
        )

    @property
    def default_name(self) -> str:
        """The job's name, the same for all jobs of a run directory and for no other's."""
        path = str(self.run_dir.absolute())
        return f"{self.run_dir.name}-{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def script_of(request: BatchRequest, chain_id: str) -> str:
    """Return the text of the batch script; ``chain_id`` is new for each submission."""
    is_chain = request.chain is not None
    run = ["exec", "holdfast", "run"]
    if is_chain:
        run += ["--no-requeue", "--wait-lease", str(_WAIT_FOR_LEASE_S)]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _sbatch_options(request)),
        _FORGET_STEP,
        f"export PATH={shlex.quote(str(request.programs))}:$PATH",
        *((f"export {CHAIN}={shlex.quote(chain_id)}",) if is_chain else ()),
        shlex.join([*run, *request.run]),
    ]
    return "\n".join(lines) + "\n"


def _sbatch_options(request: BatchRequest) -> Iterator[str]:
    given = request.sbatch
    if not _is_given(_NAMES, given):
        yield f"--job-name={shlex.quote(request.default_name)}"
    if not _is_given(("--requeue", "--no-requeue"), given):
        yield "--requeue"  # after the loss of a node
    if _value(_NODES, given) not in (None, "1") and not _is_given(_NO_KILL, given):
        yield "--no-kill"  # the run goes on without a lost node
    if not _is_given(("--open-mode",), given):
        yield "--open-mode=append"  # each incarnation goes on with the log
    if request.chain is not None:
        yield "--dependency=singleton"
    yield from _one_a_line(given)


def _one_a_line(options: Sequence[str]) -> Iterator[str]:
    """Yield options as lines of a script: ``-n 4`` stays together."""
    line: list[str] = []
    for word in options:
        if word.startswith("-") and line:
            yield shlex.join(line)
            line = []
        line.append(word)
    if line:
        yield shlex.join(line)


def _is_given(names: tuple[str, ...], options: Sequence[str]) -> bool:
    """Return whether one of ``names`` is among options."""
    return any(_is_option(word, name) for word in options for name in names)


def _is_option(word: str, name: str) -> bool:
    """Return whether ``word`` gives an option: also as ``-Jname``, ``--name=x`` or ``--na=x``."""
    if len(name) == len("-J"):
        return word.startswith(name)
    typed = word.partition("=")[0]
    return typed == name or (len(typed) >= _SHORTEST and name.startswith(typed))


def _number(names: tuple[str, ...], options: Sequence[str]) -> int | None:
    """Return the number that an option has, None if it is not given or has another value."""
    value = _value(names, options)
    return int(value) if value is not None and value.isdecimal() else None


def _value(names: tuple[str, ...], options: Sequence[str]) -> str | None:
    """Return the text that an option has, None if it is not given."""
    for word, after in itertools.zip_longest(options, options[1:], fillvalue=""):
        for name in names:
            if _is_option(word, name):
                joined = word[2:] if len(name) == len("-J") else word.partition("=")[2]
                return joined or after
    return None


class SlurmRefused(Exception):
    """A program of Slurm is missing, does not answer, or says no."""


def time_left_s(job_id: str) -> float | None:
    """Return the seconds until a job's limit, infinite without one, None if Slurm is silent."""
    try:
        said = _call(("squeue", "-h", "-j", job_id, "-o", "%L"))
    except SlurmRefused:
        return None
    return math.inf if said == "UNLIMITED" else clock_s(said)


@dataclass(frozen=True, slots=True)
class BatchNodes:
    """The nodes that a job has just now."""

    of_script: str
    """The node of its batch script, which stays named when it is lost."""
    nodes: tuple[str, ...]
    is_running: bool = True

    @property
    def script_is_lost(self) -> bool:
        """Whether the job goes on without the node of its batch script."""
        return bool(self.nodes) and self.of_script not in self.nodes


def nodes_of(job_id: str) -> BatchNodes:
    """Return the nodes of a job.

    Raises:
        SlurmRefused: Slurm does not say.
    """
    script, nodes, state = _call(("squeue", "-h", "-j", job_id, "-o", "%B|%N|%T")).split("|")
    return BatchNodes(script, tuple(expand_hosts(nodes)), state == "RUNNING")


def requeue(job_id: str, lost: Sequence[str] = (), nodes: int = 1) -> None:
    """Have a job begin again, under the same id; its processes are ended soon.

    A job of so many ``nodes`` begins on other ones than the ``lost`` if there are enough.

    Raises:
        SlurmRefused: Slurm has not done so; the text gives the reason.
    """
    if lost:
        with contextlib.suppress(SlurmRefused):
            excluded = _excluded_too(job_id, lost, nodes)
            change = f"update JobId={job_id} ExcNodeList={excluded}"
            # Only a job that waits takes it, and this process ends soon after: one call for both.
            _call(("scontrol",), f"requeue {job_id}\n{change}\n")
            return
    if not lost or nodes_of(job_id).is_running:
        _call(("scontrol", "requeue", job_id))


def _excluded_too(job_id: str, lost: Sequence[str], nodes: int) -> str:
    """Return the nodes that a job excludes, with the lost ones.

    Slurm takes any list, and holds a job for good for which too few nodes are left.  So it is
    asked first whether such a job could be submitted.  Without an exclusion the job waits until
    enough nodes answer.

    Raises:
        SlurmRefused: it could not.
    """
    shown = _call(("squeue", "-h", "-j", job_id, "-o", f"%x|{_TERMS_SHOWN}"))
    users, *terms = shown.split("|", len(_TERMS))  # a constraint, the last, may have bars itself
    excluded = ",".join(dict.fromkeys([*expand_hosts(users.replace(_NONE, "")), *lost]))
    given = [f"{name}={term}" for name, term in zip(_TERMS, terms, strict=True) if term != _NONE]
    _call(
        ("sbatch", "--test-only", f"--nodes={nodes}", f"--exclude={excluded}", *given),
        "#!/bin/sh\n",
    )
    return excluded


def cancel(job_id: str) -> None:
    """End a job for good.

    Raises:
        SlurmRefused: Slurm has not done so; the text gives the reason.
    """
    _call(("scancel", job_id))


def submit(script: str, arguments: Sequence[str] = ()) -> str:
    """Submit a batch script; return the id of its job.

    Raises:
        SlurmRefused: Slurm has not taken it; the text gives the reason.
    """
    said = _call(("sbatch", "--parsable", *arguments), script, _SUBMITS_WITHIN_S)
    job = re.match(r"[0-9]+", said)
    if job is None:
        raise SlurmRefused(f"sbatch said {said!r} and no job id")
    return job[0]


def _call(command: Sequence[str], text: str = "", within_s: float | None = None) -> str:
    within_s = within_s or ANSWERS_WITHIN_S
    # The user's wishes for squeue, such as SQUEUE_STATES, would hide this job.
    environ = {name: text for name, text in os.environ.items() if not name.startswith("SQUEUE_")}
    try:
        done = answer_of(command, within_s, environ, text)
    except subprocess.TimeoutExpired as error:
        raise SlurmRefused(f"{command[0]} has not answered for {within_s:.0f} s") from error
    except OSError as error:
        raise SlurmRefused(f"{command[0]} cannot be started: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip() or f"it ended with {done.returncode}"
        raise SlurmRefused(f"{command[0]}: {said}")
    return done.stdout.strip()


def read_duration(value: Any) -> float:
    """Return the seconds of ``5400``, ``90min``, ``1:30:00`` or ``1-12:00:00``.

    Raises:
        ValueError: it is none of these.
    """
    text = "" if isinstance(value, bool) else str(value).strip().lower()
    seconds = clock_s(text)
    match = _WITH_UNIT.fullmatch(text)
    if match is not None and match[2] in _UNITS:
        seconds = float(match[1]) * _UNITS[match[2]]
    elif seconds is None:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is not a time; {_FORMS}")
    return seconds


def clock_s(text: str) -> float | None:
    """Return the seconds of ``[days-][hours:]minutes:seconds``, None for any other text."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def bring_back(
    environ: Mapping[str, str],
    ask: Callable[[str], BatchNodes] = nodes_of,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Have the batch job around this process begin again, if it has lost its script's node.

    It returns at once outside of Slurm's batch jobs.  Slurm's SIGTERM ends the process meanwhile.
    """
    allocation = find_allocation(environ)
    if allocation is None or allocation.scheduler is not Scheduler.SLURM or not allocation.is_batch:
        return
    job = environ["SLURM_JOB_ID"]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for _ in range(_LOOKS):
        sleep(_LOOK_S)
        try:
            nodes = ask(job)
        except SlurmRefused:
            continue  # Slurm's controller may be on the lost node
        if not nodes.is_running:
            return
        if nodes.script_is_lost:
            try:
                requeue(job)  # Slurm gives no job a node that is down
            except SlurmRefused:
                cancel(job)
            return
