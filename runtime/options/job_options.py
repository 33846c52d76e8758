"""What a user asks of a job: every option with its flag, its default and its bounds.

One field is one option, so a new option is a field here and a line where it is used.  The value is
built once (`sources`), and checked here without touching a file.  It travels as it is to the
client, into the launch order and to each worker.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.recovery.fault import Fault, index_faults, parse_faults
from holdfast.recovery.placement import HostSlots, total_slots
from holdfast.recovery.schedule import parse_schedule
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.option import (
    DOCTOR,
    RUN,
    Option,
    at_least,
    check_between_hosts,
    check_mca,
    option,
    read_bytes,
    read_duration,
    read_hosts,
    read_mca,
    read_path,
    read_switch,
    read_whole_number,
    read_words,
    without_flag,
)
from holdfast.runtime.run.place_url import read_url

_EXAMINED = (RUN, DOCTOR)
_THE_SCRIPTS = "what the script says"
_RULES = ("linear", "sqrt")
_PRELOADED = ("tensorflow", "keras")


def _seconds(demand: str, *, or_none: bool = True) -> Callable[[float], None]:
    """Return a check of a time, whose refusal says what is demanded; 0 may be no time at all."""

    def check(seconds: float) -> None:
        if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and not or_none):
            raise ValueError(f"must be {demand}, got {seconds}")

    return check


_check_timeout = _seconds("a positive number of seconds", or_none=False)
_check_wait = _seconds("a time of 0 s or more")
_check_pause = _seconds("a number of seconds, or 0 or never for none")

REGROW = ("auto", "never")


def _one_of(words: Sequence[str]) -> Callable[[str], None]:
    """Return a check that refuses all but these words."""

    def check(word: str) -> None:
        if word not in words:
            raise ValueError(f"must be {' or '.join(words)}, got {word!r}")

    return check


def _check_faults(texts: tuple[str, ...]) -> None:
    """Refuse addresses of faults that do not parse."""
    index_faults(fault for fault in parse_faults(texts) if isinstance(fault, Fault))


def _read_on_off(value: Any) -> bool:
    """Return whether an option is on that has a value on the command line, too."""
    return read_switch(value)


def _number(flag: str, help: str, default: int | None, least: int, **terms: Any) -> Any:  # noqa: A002
    terms = {"read": read_whole_number, "metavar": "INTEGER", "check": at_least(least)} | terms
    return option(flag, help, default, **terms)


def _switch(flag: str, help: str, **terms: Any) -> Any:  # noqa: A002
    return option(flag, help, default=terms.pop("default", False), read=read_switch, **terms)


def _duration(flag: str, help: str, default: float | None, **terms: Any) -> Any:  # noqa: A002
    return option(flag, help, default, **({"read": read_duration, "metavar": "TIME"} | terms))


def _path(flag: str, help: str, **terms: Any) -> Any:  # noqa: A002
    return option(flag, help, None, **({"read": read_path, "metavar": "PATH"} | terms))


@dataclass(frozen=True, slots=True)
class JobOptions:
    """One job as its user asks for it.

    ``microbatches``, ``threads`` and ``seed`` belong to the run and not to the job: None
    means *not given*, so a resumed run keeps what its ``RUN.json`` holds.  Paths are
    absolute.

    Raises:
        UsageError: a value is out of range, or a schedule or a fault address does not parse.
    """

    script: Path = without_flag("It is the command's argument.", read=read_path)
    run_dir: Path = option(
        "--run-dir",
        "Where the run lives.",
        dataclasses.MISSING,
        read=read_path,
        metavar="PATH",
        default_text="./holdfast-<script's name>",
        group="Run",
    )
    argv: tuple[str, ...] = without_flag(
        "They are the script's own arguments: what follows its name.", (), read=tuple
    )
    workers: int = _number(
        "-n -np --workers",
        "Workers to start with.",
        1,
        1,
        default_text="1; in a batch job its tasks; with hosts all of their slots",
    )
    spares: int = _number("--spares", "Started workers that wait to replace the dead.", 0, 0)
    microbatches: int | None = _number(
        "--microbatches",
        "Parts of each batch, which the workers share; a run keeps them unless others are given.",
        None,
        1,
        default_text="N of -n",
    )
    balance: bool = option(
        "--balance",
        "Whether slower workers compute fewer microbatches, if there are more than workers.",
        default=True,
        read=_read_on_off,
        metavar="on|off",
        default_text="on",
    )
    threads: int | None = _number(
        "--threads",
        "Threads of each worker; a run keeps those that it began with; others change its bytes.",
        None,
        1,
        default_text="cores / N",
    )
    seed: int | None = _number(
        "--seed",
        "Seed of everything random in the run.",
        None,
        0,
        default_text="0",
    )
    initial: Path | None = _path(
        "--initial",
        "What a new run begins with: a file, or another run.",
        metavar="WEIGHTS",
        default_text=_THE_SCRIPTS,
    )
    again: bool = _switch(
        "--again", "Run the script of a complete run again, although nothing is to train."
    )
    fresh: bool = _switch(
        "--fresh",
        "Set an existing run aside, in previous-1 of its directory, and begin a new one.",
    )
    hosts: tuple[HostSlots, ...] = option(
        "--hosts",
        'Hosts of the job and how many workers each takes, as in "a:4,b:4".',
        (),
        read=read_hosts,
        metavar="HOST:N,...",
        default_text="this host",
        commands=_EXAMINED,
        group="Hosts",
    )
    hostfile: Path | None = _path(
        "--hostfile",
        'A file of hosts in place of --hosts: a host a line, as in "node1 slots=4" or "node1:4".',
        metavar="FILE",
        commands=_EXAMINED,
    )
    rsh: str = option(
        "--rsh",
        "What starts a command on another host: it is called as RSH HOST COMMAND...",
        "ssh",
        metavar="COMMAND",
        commands=_EXAMINED,
    )
    network: str | None = option(
        "--network",
        "The network between the hosts, by interface or address: eth1 or 10.1.0.0/16.",
        None,
        metavar="NAME|CIDR",
        default_text="the fastest one on which all hosts reach the first",
        commands=_EXAMINED,
    )
    try_lost_hosts: bool = _switch(
        "--try-lost-hosts", "Take hosts again that the run has lost twice within a day."
    )
    save_every: str | None = option(
        "--save-every",
        'Steps (100), a time ("10min"), "epoch" or "auto".',
        None,
        metavar="WHEN",
        default_text=_THE_SCRIPTS,
        check=parse_schedule,
        group="Checkpoints",
    )
    keep: int | None = _number(
        "--keep",
        "How many of the newest checkpoints stay, at least 2.",
        None,
        2,
        default_text="what the script says, or 3",
    )
    copy_to: str | None = option(
        "--copy-to",
        "A second place for checkpoints, of which a run takes what its directory lacks: s3://, "
        "gs:// or file:///.",
        None,
        read=read_url,
        metavar="URL",
        default_text="none",
    )
    snapshot_memory: int | None = option(
        "--snapshot-memory",
        "Memory of this host that snapshots of the state may take, such as 8GiB.",
        None,
        metavar="BYTES",
        default_text="two snapshots, as far as the host and its control groups have room",
        read=read_bytes,
    )
    shards: int | None = _number(
        "--shards",
        "Files that a checkpoint of this host is written as, all at once.",
        None,
        1,
        check=at_least(1, 1024),
        metavar="N",
        default_text="1 for each 64 MiB, at most 4; more if a file would be larger than 4 GiB",
    )
    heartbeat_timeout_s: float = _duration(
        "--heartbeat-timeout",
        "Kill a worker that stands still for longer than this.",
        10.0,
        default_text="10 s",
        check=_check_timeout,
        group="Deaths and stalls",
    )
    stall_timeout_s: float | None = _duration(
        "--stall-timeout",
        "Kill a worker that all others wait for and that has made no progress for this long.",
        None,
        metavar="TIME|never",
        default_text="50 times the longest piece of work so far, at least 10 min",
        check=_check_pause,
    )
    max_restarts: int = _number(
        "--max-restarts",
        "How often to relaunch a job that lost all workers; a try without progress counts twice.",
        3,
        0,
    )
    shrink: bool = _switch(
        "--shrink", "Whether survivors go on in place.", default=True, off_flag="--no-shrink"
    )
    regrow: str = option(
        "--regrow",
        "Whether the places of dead workers and lost hosts are filled again when it pays.",
        "auto",
        metavar="|".join(REGROW),
        check=_one_of(REGROW),
    )
    verify_every: int | None = _number(
        "--verify-every",
        "Steps between comparisons of the workers' states.",
        None,
        0,
        metavar="STEPS",
        default_text=_THE_SCRIPTS,
    )
    strict: bool = _switch("--strict", "Refuse other numerics, in a resume and of hosts.")
    grace_s: float | None = _duration(
        "--grace",
        "Time to save and stop after the first signal; then the job ends at once.",
        None,
        default_text="as long as it takes",
        check=_check_timeout,
        group="Stopping and batch jobs",
    )
    deadline_s: float | None = _duration(
        "--deadline",
        'Time from the start ("2h", "90min", seconds) by which the job must have saved and ended.',
        None,
        default_text="the time limit of the batch job",
        check=_check_timeout,
    )
    requeue: bool = _switch(
        "--requeue",
        "Whether a batch job that its time limit has stopped is requeued.",
        default=True,
        off_flag="--no-requeue",
    )
    wait_lease_s: float = _duration(
        "--wait-lease",
        "Time to wait for another job that owns the run directory.",
        0.0,
        default_text="no waiting",
        check=_check_wait,
    )
    fit: bool = _switch(
        "--fit",
        "Whether Keras's fit trains on all workers together.",
        default=True,
        off_flag="--no-fit",
        group="Keras",
    )
    scale_batch: int = _number(
        "--scale-batch", "Each update of fit() takes this many times the script's batch size.", 1, 1
    )
    scale_rate: str | None = option(
        "--scale-lr",
        "How the learning rate grows with --scale-batch, over five epochs: linear or sqrt.",
        None,
        metavar="linear|sqrt",
        check=_one_of(_RULES),
        default_text="it does not",
    )
    accept_batch_mixing: bool = _switch(
        "--accept-batch-mixing",
        "Train also a loss that mixes the samples of a batch: each microbatch has its own.",
    )
    preload: tuple[str, ...] = option(
        "--preload",
        "Modules that warm processes import ahead of becoming workers.",
        _PRELOADED,
        read=read_words(","),
        metavar="MODULES",
        group="Processes and MPI",
    )
    mpiexec: Path | None = _path(
        "--mpiexec", "The mpiexec to use.", default_text="Python's, then PATH's"
    )
    mca: tuple[str, ...] = option(
        "--mca",
        "A setting of Open MPI, which mpiexec gets as it is; may be repeated.",
        (),
        read=read_mca,
        metavar="KEY VALUE",
        is_repeated=True,
        words=2,
        check=check_mca,
        commands=_EXAMINED,
    )
    verbose: bool = _switch(
        "-v --verbose",
        "Show the lines of all workers, each behind its worker, Open MPI's own messages, "
        "and whole tracebacks.",
        group="Output and tests",
    )
    quiet: bool = _switch("-q --quiet", "Say only what goes wrong.")
    metrics_file: Path | None = _path(
        "--metrics-file",
        "A file of figures for Prometheus, written anew every few seconds.",
        metavar="FILE",
    )
    faults: tuple[str, ...] = option(
        "--inject",
        'A fault to strike: "kill worker=2 step=30", or "random seed=7 count=5"; may be repeated.',
        (),
        read=read_words(";"),
        metavar="FAULT",
        is_repeated=True,
        check=_check_faults,
    )

    def __post_init__(self) -> None:
        """Refuse requests that make no sense, with one sentence each."""
        for name, found in OPTIONS.items():
            found.refuse(getattr(self, name))
        if self.hosts:
            check_between_hosts(self.mca)
        wanted, slots = self.workers + self.spares, total_slots(self.hosts)
        if self.hosts and wanted > slots:
            spares = f" with --spares {self.spares}" if self.spares else ""
            raise UsageError(
                f"-n {self.workers}{spares} needs {wanted} slots, and the hosts "
                f"{','.join(map(str, self.hosts))} have {slots}; ask for fewer workers, or name "
                "more slots or hosts"
            )

    @property
    def named_modules(self) -> tuple[str, ...]:
        """The modules to preload that the user has named himself."""
        return tuple(module for module in self.preload if module not in _PRELOADED)

    @property
    def told(self) -> tuple[str, ...]:
        """Each option that is not its default, as a flag and a value: what tells two runs apart."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return tuple(
            f"{found.flags[-1]} {_in_words(getattr(self, name))}"
            for name, found in OPTIONS.items()
            if found.flags and name not in _TOLD_ELSEWHERE and getattr(self, name) != defaults[name]
        )

    def differences(self, asked: JobOptions) -> tuple[str, ...]:
        """Return each option that is another one in ``asked``, with both values, in words."""
        return tuple(
            f"{found.flags[-1]} {_in_words(getattr(self, name))}, "
            f"not {_in_words(getattr(asked, name))}"
            for name, found in OPTIONS.items()
            if found.flags and getattr(self, name) != getattr(asked, name)
        )


_TOLD_ELSEWHERE = frozenset(
    {"run_dir", "workers", "spares", "microbatches", "seed", "threads", "hosts"}
    | {"again", "fresh"}
)
"""Options with a place of their own in the record of a begin, and those that begin a job alone."""


def _in_groups() -> Iterator[tuple[str, Option]]:
    """Yield the option behind each field; one that names no group is in that of the one before."""
    group = ""
    for field in dataclasses.fields(JobOptions):
        found: Option = field.metadata["option"]
        group = found.group or group
        yield field.name, dataclasses.replace(found, group=group)


OPTIONS: Mapping[str, Option] = dict(_in_groups())
"""The option behind each field, by groups of the help."""


def _in_words(value: object) -> str:
    """Return an option's value as a person reads it."""
    if value is None or value == ():
        return "left out"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
