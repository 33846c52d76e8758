"""One option of a job: how it is written, how its value is read, and what it may be.

An option is one field of `job_options.JobOptions`.  Its flag names it everywhere: the
option ``--save-every`` is ``HOLDFAST_SAVE_EVERY`` in the environment and ``save-every``
in ``holdfast.toml``.  A value may come as text or as what TOML and JSON make of it, so
each reader takes both.

A hostfile is that of Open MPI and Horovod: a host a line, with ``slots=4``, with ``:4``, or alone
for one slot.  A host that stands in several lines has the slots of all, as in the node files of
PBS.  ``max_slots`` limits how many workers Open MPI would put on a host beyond its slots.  Here a
host takes no more than its slots, and no more than that.

``--mca KEY VALUE`` is a setting of Open MPI's own, which mpiexec gets; it is kept as one text,
``"btl self,uct"``.  One is refused that would take away what a job relies on, or that says nothing
to its workers: mpiexec starts guards, and not them.  Whether ranks outlive a death with the others
is found out by a trial (`host.mpi_trial`).
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.recovery.placement import HostSlots
from holdfast.recovery.schedule import seconds_of
from holdfast.runtime.errors import UsageError

Reader: TypeAlias = Callable[[Any], Any]
"""Makes a value of a text or of a value of TOML; raises ``ValueError`` with what is wrong."""

_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})
_FALSE = frozenset({"0", "false", "no", "off", "n", "f"})

_BYTES = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]*)")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
_PREFIXES = ("", "k", "m", "g", "t", "p")
_UNITS = {
    "": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate(_PREFIXES) if prefix},
}
_TIMES = 'give seconds (5400), a time with its unit ("90min", "2h") or hours:minutes:seconds'

_SLOTS, _MOST = "slots", "max_slots"

RUN, DOCTOR = "run", "doctor"

_KEY = re.compile(r"[A-Za-z]\w*")

_REFUSED = {
    r"btl_sm_backing_directory|prte_default_hostfile|shmem|gds|opal_signal|state_base_recoverable|"
    r"state_base_notify_errors|pmix_remote_connections|mpi_add_procs_cutoff|btl_tcp_links|"
    r"orte_allowed_exit_without_sync": (
        "holdfast sets this itself, and a job relies on it; leave it out"
    ),
    r"btl_tcp_if_(include|exclude)|ptl_tcp_if_include": (
        "PMIx and MPI take the same network; name it with --network"
    ),
    r"mpi_ft_(detector|enable).*": (
        "holdfast finds out who is dead (--heartbeat-timeout), and MPI must not; leave it out"
    ),
    r"(rmaps|ras|plm|ess|hwloc|prte_|orte_).*": (
        "mpiexec places and binds guards, not workers; give workers to hosts with --hosts, and "
        "cores to a job with taskset or the batch system"
    ),
}
"""Keys that would break a job, with the reason and the remedy."""
_UNSAFE_COLLECTIVES = ("han", "adapt")
"""``han`` has returned success with wrong sums after a death."""


@dataclass(frozen=True, slots=True)
class Option:
    """How one field of the job's options is written and read.

    Attributes:
        flags: names on the command line, the long one last; none for a field that no
            person sets, whose help says why.
        help: what it is for, in one sentence.
        read: makes the field's value of a text or of a value of TOML.
        metavar: what stands for the value in the help; none for a switch.
        default_text: the default in words, where the field's own says nothing.
        check: raises ``ValueError`` for a value that makes no sense.
        commands: the commands that have the flag.
        off_flag: the flag that switches it off.
        is_repeated: whether the flag may be given several times.
        words: how many words the flag takes as its value.
        group: the heading in the help, below which it stands with all that follow it.
    """

    flags: tuple[str, ...]
    help: str
    read: Reader
    metavar: str | None = None
    default_text: str | None = None
    check: Callable[[Any], object] | None = None
    commands: tuple[str, ...] = (RUN,)
    off_flag: str | None = None
    is_repeated: bool = False
    words: int = 1
    group: str = ""

    @property
    def key(self) -> str:
        """The name in ``holdfast.toml``, which may also be written with dashes."""
        return self.flags[-1].lstrip("-").replace("-", "_")

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return f"HOLDFAST_{self.key.upper()}"

    @property
    def label(self) -> str:
        """The option as messages name it."""
        short = len(self.flags) > 1
        return f"{self.flags[0]} ({self.key})" if short else self.flags[-1]

    @property
    def is_switch(self) -> bool:
        """Whether the flag takes no value."""
        return self.read is read_switch

    def refuse(self, value: object, label: str = "") -> None:
        """Raise ``UsageError`` for a value that makes no sense.

        ``label`` names the place where the value stands, if it is no flag.
        """
        try:
            if self.check is not None and value is not None:
                self.check(value)
        except ValueError as error:
            reason = str(error)
            link = " " if reason.startswith("must") else ": "
            raise UsageError(f"{label or self.label}{link}{reason}") from error


def option(flag: str, help: str, default: Any, **terms: Any) -> Any:  # noqa: A002
    """Return a field of ``JobOptions`` with its default and its ``Option``.

    Raises ``TypeError`` for a value without a name in the help, and for a switch with one.
    """
    flags = tuple(flag.split())
    found = Option(flags, help, terms.pop("read", read_text), **terms)
    if found.is_switch is not (found.metavar is None):
        raise TypeError(f"{flag}: an option has a metavar if it takes a value, and only then")
    return dataclasses.field(default=default, metadata={"option": found})


def without_flag(reason: str, default: Any = dataclasses.MISSING, *, read: Reader) -> Any:
    """Return a field of ``JobOptions`` that has no flag, and why."""
    found = Option((), reason, read)
    return dataclasses.field(default=default, metadata={"option": found})


def read_text(value: Any) -> str:
    """Return a value as text, since TOML may make a number of it."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is not a text")
    return str(value)


def read_whole_number(value: Any) -> int:
    """Return a whole number."""
    try:
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise ValueError
        return int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{value!r} is not a valid integer") from error


def read_duration(value: Any) -> float:
    """Return the seconds of ``5400``, ``90min``, ``1:30:00`` or ``1-12:00:00``; never is 0."""
    text = "" if isinstance(value, bool) else str(value).strip().lower()
    if text == "never":
        return 0.0
    seconds = seconds_of(text)
    if seconds is None:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is not a time; {_TIMES}")
    return seconds


def read_bytes(value: Any) -> int:
    """Return a number of bytes, which may have a unit: ``8GiB``, ``1.5 TB``, ``4096``."""
    match = _BYTES.fullmatch(str(value).strip().lower())
    nbytes = int(Fraction(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if isinstance(value, bool) or nbytes <= 0:
        raise ValueError(f"{value!r} is not a number of bytes, such as 8GiB")
    return nbytes


def read_switch(value: Any) -> bool:
    """Return whether a switch is on."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(f"{value!r} is neither yes nor no")
    return word in _TRUE


def read_path(value: Any) -> Path:
    """Return a path; ``~`` and variables are replaced, which no shell does in a file or a flag."""
    if not isinstance(value, (str, Path)) or not str(value):
        raise ValueError(f"{value!r} is not a path")
    path = os.path.expanduser(os.path.expandvars(value))
    unknown = "~" if str(path).startswith("~") else _VARIABLE.search(str(path))
    if unknown:
        what = "a home" if unknown == "~" else "a variable"
        raise ValueError(f"{str(value)!r} names {what} that is not there")
    return Path(path)


def read_words(separator: str) -> Reader:
    """Return a reader of several words: a list, or one text with ``separator`` between them."""

    def read(value: Any) -> tuple[str, ...]:
        words = value.split(separator) if isinstance(value, str) else value
        if not isinstance(words, Iterable) or not all(isinstance(word, str) for word in words):
            raise ValueError(f"{value!r} is not a list of words")
        return tuple(word.strip() for word in words if word.strip())

    return read


def at_least(least: int, most: int | None = None) -> Callable[[int], None]:
    """Return a check that refuses smaller numbers, and larger ones than ``most``."""

    def check(value: int) -> None:
        if value < least:
            raise ValueError(f"must be at least {least}, got {value}")
        if most is not None and value > most:
            raise ValueError(f"must be at most {most}, got {value}")

    return check


def read_hosts(value: Any) -> tuple[HostSlots, ...]:
    """Return hosts and their slots of ``a:4,b:4``, or of a list of such words; alone it is one."""
    words = value if isinstance(value, (list, tuple)) else str(value).split(",")
    hosts = tuple(_read_host(str(word).strip()) for word in words if str(word).strip())
    names = [host.name for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{twice[0]} stands there {names.count(twice[0])} times; name it once")
    return hosts


def read_hostfile(path: Path) -> tuple[HostSlots, ...]:
    """Return the hosts of a file and their slots, in its order.

    Raises:
        ValueError: it cannot be read, has no host, or a line of it is no host.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    slots: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            try:
                host = _read_line(words)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from error
            slots[host.name] = slots.get(host.name, 0) + host.slots
    if not slots:
        raise ValueError(f"{path} names no host; write one a line, such as `node1 slots=4`")
    return tuple(HostSlots(name, count) for name, count in slots.items())


def _read_line(words: list[str]) -> HostSlots:
    host = _read_host(words[0])
    given = dict(word.replace("max-slots", _MOST).partition("=")[::2] for word in words[1:])
    if not set(given) <= {_SLOTS, _MOST} or not all(map(str.isdecimal, given.values())):
        raise ValueError(f"{' '.join(words)!r} is no host with its slots, such as node1 slots=4")
    slots = int(given.get(_SLOTS, host.slots))
    return HostSlots(host.name, min(slots, int(given.get(_MOST, slots))))


def _read_host(word: str) -> HostSlots:
    name, _, slots = word.partition(":")
    if not name or name[0] in "-+^" or (slots and not slots.isdecimal()):
        raise ValueError(f"{word!r} is no host with its number of workers, such as node1:4")
    return HostSlots(name, int(slots or 1))


def read_mca(value: Any) -> tuple[str, ...]:
    """Return settings of pairs from the command line, of a list, or of one text with ``;``."""
    entries = value.split(";") if isinstance(value, str) else value
    if not isinstance(entries, Iterable):
        raise ValueError(f"{value!r} is not a list of settings")
    texts = [entry if isinstance(entry, str) else " ".join(entry) for entry in entries]
    return tuple(" ".join(text.split()) for text in texts if text.strip())


def pair_of(setting: str) -> tuple[str, str]:
    """Return key and value of a setting."""
    key, _, value = setting.partition(" ")
    return key, value


def check_mca(settings: tuple[str, ...]) -> None:
    """Refuse settings that would break a job; the message has the reason and the remedy."""
    keys = [pair_of(setting)[0] for setting in settings]
    for key, value in map(pair_of, settings):
        if _KEY.fullmatch(key) is None or not value:
            raise ValueError(f'must be a key and its value, as in "btl self,uct", got {key!r}')
        if keys.count(key) > 1:
            raise ValueError(f"{key} is given {keys.count(key)} times; mpiexec takes it once")
        for reason in (_REFUSED[pattern] for pattern in _REFUSED if re.fullmatch(pattern, key)):
            raise ValueError(f"{key}: {reason}")
        names, are_left_out = value.lstrip("^").split(","), value.startswith("^")
        if key == "btl" and (are_left_out or "self" not in names):
            raise ValueError(
                f'btl: name the transports to use, self among them, as in "self,uct", not {value!r}'
            )
        unsafe = [name for name in _UNSAFE_COLLECTIVES if (name in names) is not are_left_out]
        if key == "coll" and unsafe:
            raise ValueError(
                f"coll: {' and '.join(unsafe)} may return success with wrong sums after a death; "
                f'leave them out, as in "^{",".join(_UNSAFE_COLLECTIVES)}"'
            )


def check_between_hosts(settings: tuple[str, ...]) -> None:
    """Refuse settings that would break a job over several hosts; raises ``UsageError``."""
    for key, value in map(pair_of, settings):
        names = value.lstrip("^").split(",")
        if key == "btl" and "sm" in names:
            raise UsageError(
                "--mca btl: sm is shared memory, and each rank takes those of other hosts for its "
                "neighbours there; leave sm out, or run on one host"
            )
        if key == "coll" and value.startswith("^") is not ("sm" in names):
            left_out = ",".join((*_UNSAFE_COLLECTIVES, "sm"))
            raise UsageError(f'--mca coll: sm must be left out between hosts, as in "^{left_out}"')
