"""Strikes: what is done to which part of a job, and when; as values, lines and plans; pure.

Examples of lines::

    kill worker #2 at 12.5s
    stop+cont agent at step 40 for 3s
    full stderr on checkpoint 2 for 3s
    kill worker of b at step 30
    stop+cont host b at step 40 for 3s

``#2`` chooses among several processes of the kind: it is taken modulo their number.  A moment is a
time since the run began, a step, or the n-th record of an event in the journal.  A job over several
hosts has an agent, a pool and a writer on each; and a whole host may be struck, but the first one.

A plan is a file of such lines, or follows from a seed.  The same seed, kinds and figures give the
same plan on every machine and in every release of Python: all draws come from splitmix64.  There
are two sorts:

* a *mean time between failures*: strikes without end, whose gaps are exponential, as those
  of machines that fail independently of their age;
* a *count*: so many strikes, each at a step or at an event of the run.  A run is then
  struck in all its phases, however fast the machine is.

The ``Agenda`` tells which strikes of a plan are due, given how far the run has come.
"""

from __future__ import annotations

import itertools
import math
import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from holdfast.recovery.order import WORD, chain
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.entries import Entry, event_names, name_of
from holdfast.runtime.run.events import Step

_EXAMPLE = "kill worker #2 at 12.5s; stop+cont agent at step 40 for 3s; full stderr on checkpoint"
_LINE = re.compile(
    r"(?P<kind>\S+)\s+(?P<target>[a-z]+)(\s+#(?P<index>\d+))?"
    r"(\s+(of\s+)?(?P<host>(?!(at|on|of)\s)[^\s#]\S*))?\s+"
    r"(at\s+(?P<seconds>\d+(\.\d+)?)\s*s|at\s+step\s+(?P<step>\d+)"
    r"|on\s+(?P<event>[a-z_]+)(\s+(?P<count>[1-9]\d*))?)"
    r"(\s+for\s+(?P<lasting>\d+(\.\d+)?)\s*s)?"
)

_BLOW, _MOMENT, _INDEX, _WHEN, _COUNT = range(5)
_INDICES = 64
"""Among so many processes of one kind each has the same chance, within 1 in 64."""

_AT_EVENT = 0.4
"""The part of a count's strikes that is bound to an event."""

DEFAULT_FOR_S = 3.0
"""How long a stopped process or a full place stays so: less than any limit of a watcher."""


class Kind(Enum):
    """What is done."""

    KILL = "kill"
    STOP = "stop"
    STOP_CONT = "stop+cont"
    TERM = "term"
    FULL = "full"


class Target(Enum):
    """What it is done to: a process of the job, or a place that takes its bytes."""

    WORKER = "worker"
    GUARD = "guard"
    AGENT = "agent"
    POOL = "pool"
    WRITER = "writer"
    MPIEXEC = "mpiexec"
    CLIENT = "client"
    STDERR = "stderr"
    HOST = "host"
    """All that a job has on one of its hosts, but for the first one."""


PLACES = (Target.STDERR,)
PROCESSES = tuple(target for target in Target if target not in (*PLACES, Target.HOST))
OF_EACH_HOST = (Target.WORKER, Target.AGENT, Target.POOL, Target.WRITER, Target.HOST)
"""What other hosts of a job have, too."""
_OF_HOSTS = (Kind.KILL, Kind.STOP, Kind.STOP_CONT)
"""What is done to a whole host: the agents of other hosts take no SIGTERM for an order."""
SIGNALS = {
    Kind.KILL: signal.SIGKILL,
    Kind.STOP: signal.SIGSTOP,
    Kind.STOP_CONT: signal.SIGSTOP,
    Kind.TERM: signal.SIGTERM,
}
LASTING = (Kind.STOP_CONT, Kind.FULL)
"""The kinds that end after a time."""


def _names(choices: Iterable[Enum]) -> str:
    return ", ".join(str(choice.value) for choice in choices)


@dataclass(frozen=True, slots=True)
class AtTime:
    """A time in seconds since the run began."""

    seconds: float

    def __str__(self) -> str:
        return f"at {self.seconds:g}s"


@dataclass(frozen=True, slots=True)
class AtStep:
    """The moment when the journal holds the step; 0 is the beginning of the run."""

    step: int

    def __str__(self) -> str:
        return f"at step {self.step}"


@dataclass(frozen=True, slots=True)
class OnEvent:
    """The moment when the journal holds the event for the n-th time, from 1."""

    event: str
    count: int = 1

    def __str__(self) -> str:
        return f"on {self.event}" + (f" {self.count}" if self.count > 1 else "")


Moment: TypeAlias = AtTime | AtStep | OnEvent


@dataclass(frozen=True, slots=True)
class Blow:
    """A kind of strike on a target."""

    kind: Kind
    target: Target

    def __post_init__(self) -> None:
        """Refuse what makes no sense: places are filled, and processes get signals."""
        if (self.kind is Kind.FULL) != (self.target in PLACES):
            raise ValueError(
                f"{self.kind.value!r} and {self.target.value!r} do not go together: full needs "
                f"one of {_names(PLACES)}; the other kinds need a process"
            )
        if self.target is Target.HOST and self.kind not in _OF_HOSTS:
            raise ValueError(f"a host takes one of {_names(_OF_HOSTS)}, not {self.kind.value}")

    def __str__(self) -> str:
        return f"{self.kind.value} {self.target.value}"


@dataclass(frozen=True, slots=True)
class Strike:
    """One strike; ``for_s`` is None for the kinds that do not end.

    Without a ``host`` the index chooses among the victims of all hosts.
    """

    blow: Blow
    moment: Moment
    index: int = 0
    for_s: float | None = None
    host: str = ""

    def __str__(self) -> str:
        index = f" #{self.index}" if self.index else ""
        of = " " if self.blow.target is Target.HOST else " of "
        host = f"{of}{self.host}" if self.host else ""
        lasting = "" if self.for_s is None else f" for {self.for_s:g}s"
        return f"{self.blow}{index}{host} {self.moment}{lasting}"


PROCESS_BLOWS = tuple(
    Blow(kind, target) for kind in Kind if kind is not Kind.FULL for target in PROCESSES
)
BLOWS = (*PROCESS_BLOWS, *(Blow(Kind.FULL, place) for place in PLACES))
"""What may strike a job on one host; a seed draws from them in this order."""
BLOWS_ON_HOSTS = (*BLOWS, *(Blow(kind, Target.HOST) for kind in _OF_HOSTS))
"""What may strike a job over several hosts."""


def parse_blows(text: str, blows: Sequence[Blow] = BLOWS) -> tuple[Blow, ...]:
    """Return those of ``blows`` that a list such as ``kill, stop agent, full stderr`` names.

    A kind alone stands for all its targets, a target alone for all kinds.

    Raises:
        UsageError: a word is unknown, or the pair makes no sense.
    """
    found: list[Blow] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        words = set(item.split())
        named = [b for b in blows if words <= {b.kind.value, b.target.value}]
        if not named:
            raise UsageError(f"cannot read the kind of strike {item!r}: {_trouble(words)}")
        found += [blow for blow in named if blow not in found]
    if not found:
        raise UsageError(f"--kinds is empty: {_WANTED}")
    return tuple(found)


_WANTED = f"give a kind, a target or both (kinds: {_names(Kind)}; targets: {_names(Target)})"


def _trouble(words: set[str]) -> str:
    """Return why no blow has all these words."""
    kinds = [kind for kind in Kind if kind.value in words]
    targets = [target for target in Target if target.value in words]
    if len(kinds) == len(targets) == 1 and len(words) == 2:
        try:
            Blow(kinds[0], targets[0])
        except ValueError as error:
            return str(error)
    return "the job has one host" if targets == [Target.HOST] else _WANTED


def parse_strike(line: str) -> Strike:
    """Return the strike that a line of a plan describes.

    Raises:
        UsageError: it describes none; the message has an example.
    """
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise UsageError(f"cannot read the strike {line.strip()!r} (examples: {_EXAMPLE})")
    try:
        blow = Blow(_member(Kind, match["kind"]), _member(Target, match["target"]))
        _check(match, blow)
    except ValueError as error:
        raise UsageError(f"cannot read the strike {line.strip()!r}: {error}") from error
    for_s = float(match["lasting"] or DEFAULT_FOR_S) if blow.kind in LASTING else None
    return Strike(blow, _moment(match), int(match["index"] or 0), for_s, match["host"] or "")


def parse_plan(text: str) -> tuple[Strike, ...]:
    """Return the strikes of a plan, one a line; empty lines and ``#`` lines do not count.

    Raises:
        UsageError: a line describes no strike, or there is none; the message has its number.
    """
    found: list[Strike] = []
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line and not line.startswith("#"):
            try:
                found.append(parse_strike(line))
            except UsageError as error:
                raise UsageError(f"line {number} of the plan: {error}") from error
    if not found:
        raise UsageError(f"the plan has no strike; write one a line (examples: {_EXAMPLE})")
    return tuple(found)


def _check(match: re.Match[str], blow: Blow) -> None:
    """Refuse an event that no journal has, and a length where nothing lasts."""
    event = match["event"]
    if event is not None and event not in event_names():
        raise ValueError(f"no journal has an event {event!r}; events: {', '.join(event_names())}")
    if match["lasting"] is not None and blow.kind not in LASTING:
        raise ValueError(
            f"{blow.kind.value} cannot last; leave `for` out, or take full or stop+cont"
        )
    if match["host"] is not None and blow.target not in OF_EACH_HOST:
        raise ValueError(f"{blow.target.value} is on the first host; leave {match['host']} out")


def _moment(match: re.Match[str]) -> Moment:
    if match["seconds"] is not None:
        return AtTime(float(match["seconds"]))
    if match["step"] is not None:
        return AtStep(int(match["step"]))
    return OnEvent(match["event"], int(match["count"] or 1))


_Choice = TypeVar("_Choice", Kind, Target)


def _member(choices: type[_Choice], word: str) -> _Choice:
    """Return the kind or target that ``word`` names; raises ``ValueError`` with the list."""
    for choice in choices:
        if choice.value == word:
            return choice
    noun = "kind" if choices is Kind else "target"
    raise ValueError(f"{word!r} is no {noun}; {noun}s: {_names(choices)}")


_SEVERAL = (Target.WORKER, Target.GUARD)
_SEVERAL_ON_HOSTS = (*OF_EACH_HOST, Target.GUARD)
_EVENTS = ("launch", "world", "checkpoint", "failure", "completed")
"""Starting, training again, in a save, in a repair, ending."""


def strikes_by_mtbf(
    seed: int, mtbf_s: float, blows: Sequence[Blow], *, has_hosts: bool = False
) -> Iterator[Strike]:
    """Yield strikes for ever, with exponential gaps of ``mtbf_s`` on average."""
    several = _SEVERAL_ON_HOSTS if has_hosts else _SEVERAL
    seconds = 0.0
    for number in itertools.count():
        seconds += -mtbf_s * math.log(1.0 - _draw(seed, number, _WHEN))
        yield _strike(seed, number, blows, AtTime(round(seconds, 2)), several)


def strikes_by_count(
    seed: int, count: int, steps: int, blows: Sequence[Blow], *, has_hosts: bool = False
) -> tuple[Strike, ...]:
    """Return ``count`` strikes on a run of ``steps`` steps."""
    several = _SEVERAL_ON_HOSTS if has_hosts else _SEVERAL
    return tuple(
        _strike(seed, number, blows, _random_moment(seed, number, steps), several)
        for number in range(count)
    )


def pick(seed: int, purpose: int, least: int, most: int) -> int:
    """Return a number from ``least`` to ``most`` that follows from ``seed``."""
    return least + int(_draw(seed, purpose, _COUNT) * (most - least + 1))


def _strike(
    seed: int, number: int, blows: Sequence[Blow], moment: Moment, several: Sequence[Target]
) -> Strike:
    blow = blows[int(_draw(seed, number, _BLOW) * len(blows))]
    return Strike(
        blow,
        moment,
        index=int(_draw(seed, number, _INDEX) * _INDICES) if blow.target in several else 0,
        for_s=DEFAULT_FOR_S if blow.kind in LASTING else None,
    )


def _random_moment(seed: int, number: int, steps: int) -> Moment:
    if _draw(seed, number, _MOMENT) < _AT_EVENT:
        event = _EVENTS[int(_draw(seed, number, _WHEN) * len(_EVENTS))]
        return OnEvent(event, 1 + int(_draw(seed, number, _COUNT) * 2))
    return AtStep(int(_draw(seed, number, _WHEN) * (steps + 1)))


def _draw(seed: int, number: int, purpose: int) -> float:
    """Return a number in [0, 1) that follows from its arguments."""
    return (chain(seed, number, purpose) >> 11) / float(WORD >> 11)


@dataclass
class Progress:
    """How far a run has come, by its journal."""

    step: int = 0
    events: Counter[str] = field(default_factory=Counter)

    def saw(self, entry: Entry[Any]) -> None:
        """Take note of the journal's next entry."""
        if entry.event is not None:
            self.events[name_of(entry.event)] += 1
        if isinstance(entry.event, Step):
            self.step = max(self.step, entry.event.step)


class Agenda:
    """The strikes that are still to come; a plan without end must be ordered by time."""

    def __init__(self, strikes: Iterable[Strike], *, is_endless: bool = False) -> None:
        self._is_endless = is_endless
        self._coming: Iterator[Strike] = iter(strikes) if is_endless else iter(())
        self.pending: list[Strike] = [] if is_endless else list(strikes)

    def due(self, elapsed_s: float, progress: Progress) -> list[Strike]:
        """Take the strikes whose moment has come off the list, and return them."""
        if not self.pending:
            self.pending += itertools.islice(self._coming, 1)
        due = [strike for strike in self.pending if _is_due(strike, elapsed_s, progress)]
        self.pending = [strike for strike in self.pending if strike not in due]
        return due

    def unstruck(self) -> list[Strike]:
        """Return the strikes of a finite plan whose moment has not come."""
        return [] if self._is_endless else list(self.pending)


def _is_due(strike: Strike, elapsed_s: float, progress: Progress) -> bool:
    moment = strike.moment
    if isinstance(moment, AtTime):
        return elapsed_s >= moment.seconds
    if isinstance(moment, AtStep):
        return progress.step >= moment.step
    return progress.events[moment.event] >= moment.count
