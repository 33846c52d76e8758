"""Faults to inject, each with an address at which it strikes.

An example is ``kill worker=2 step=30 site=compute attempt=1``. Worker 2 kills itself in
its first attempt to compute the update that makes the step counter 30. An address names
one moment of a job, so any failure can be replayed.

A host in place of a worker means the first worker of a launch on that host: ``lose host=b
step=30``.  Some kinds strike the whole host, and need one.

``random seed=7 count=5`` stands for five kills and stops, which follow from the seed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TypeAlias, TypeVar

from holdfast.recovery.errors import WrongText
from holdfast.recovery.world import WorkerId

_LOWEST = {"worker": 0, "step": 1, "attempt": 1, "seed": 0, "count": 1, "steps": 1}
_WORDS = ("worker", "step", "site", "attempt", "host")
_EXAMPLE = "kill worker=2 step=30 site=compute attempt=1"
_RANDOM = "random"
_RANDOM_WORDS = ("seed", "count", "steps")
_RANDOM_EXAMPLE = "random seed=7 count=5"
_RANDOM_STEPS = 100


class FaultKind(Enum):
    """The failure that the victim inflicts on itself."""

    KILL = "kill"
    STOP = "stop"
    EXIT = "exit"
    RAISE = "raise"
    SEGFAULT = "segfault"
    GIL = "gil"
    LOSE = "lose"
    """The host's agent and all its workers die."""
    CUT = "cut"
    """The host's agent falls silent, as if its link were cut."""
    FREEZE = "freeze"
    """All of the host stand still."""

    @property
    def is_of_host(self) -> bool:
        """Whether it strikes a whole host."""
        return self in (FaultKind.LOSE, FaultKind.CUT, FaultKind.FREEZE)


class Site(Enum):
    """The named points of a step at which a fault may strike."""

    COMPUTE = "compute"
    REDUCE = "reduce"
    VOTE = "vote"
    APPLY = "apply"
    REPAIR = "repair"
    SAVE = "save"


@dataclass(frozen=True, slots=True)
class Visit:
    """The address of a moment: a worker at a site, in an attempt (from 1) at a step."""

    worker: WorkerId
    step: int
    site: Site
    attempt: int


Moment: TypeAlias = tuple[object, object]
"""A step and the name of a site in it: what tells one random fault from another."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure to inject; ``step`` is the counter that the current update would reach.

    A fault of a ``host`` strikes its first worker in each launch: ``placed`` says which that is.
    """

    kind: FaultKind
    worker: WorkerId
    step: int
    site: Site = Site.COMPUTE
    attempt: int = 1
    host: str = ""

    def placed(self, host_of: Mapping[WorkerId, str]) -> Fault | None:
        """Return the fault with its worker, None if no worker of the launch is on its host."""
        if not self.host:
            return self
        found = next((worker for worker, host in host_of.items() if host == self.host), None)
        return None if found is None else replace(self, worker=found)

    @property
    def address(self) -> Visit:
        """The moment at which the fault strikes."""
        return Visit(self.worker, self.step, self.site, self.attempt)

    @property
    def moment(self) -> Moment:
        """The address without its worker and attempt."""
        return self.step, self.site.value

    def __str__(self) -> str:
        victim = f"host={self.host}" if self.host else f"worker={self.worker}"
        return (
            f"{self.kind.value} {victim} step={self.step}"
            f" site={self.site.value} attempt={self.attempt}"
        )


_RANDOM_KINDS = (FaultKind.KILL, FaultKind.STOP)
_RANDOM_SITES = (Site.COMPUTE, Site.REDUCE, Site.VOTE, Site.APPLY)
"""What every worker passes in every step."""


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """Kills and stops at random steps, sites and workers; the same seed gives the same ones.

    Steps 1 to ``steps`` are cut into ``count`` parts, and each part has one fault.  Its worker is
    the one in some place of the launch, so it is there after a relaunch, too.  No place comes
    again before each other one has come: victims are alive, as far as nothing else kills them.
    """

    seed: int
    count: int
    steps: int = _RANDOM_STEPS

    def faults(self, workers: Sequence[WorkerId]) -> tuple[Fault, ...]:
        """Return the faults with the workers of a launch, in the order of their steps."""
        ends = [number * self.steps // self.count for number in range(self.count + 1)]
        victims = sorted(workers, key=lambda worker: self._draw("victim", workers.index(worker)))
        return tuple(
            Fault(
                _RANDOM_KINDS[self._draw("kind", number) % len(_RANDOM_KINDS)],
                victims[number % len(victims)],
                begin + 1 + self._draw("step", number) % (end - begin),
                _RANDOM_SITES[self._draw("site", number) % len(_RANDOM_SITES)],
            )
            for number, (begin, end) in enumerate(pairwise(ends))
        )

    def _draw(self, what: str, number: int) -> int:
        """Return a number that is the same on every machine and in every Python."""
        text = f"{self.seed} {what} {number}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    def __str__(self) -> str:
        return f"{_RANDOM} seed={self.seed} count={self.count} steps={self.steps}"


def faults_of_launch(
    given: Iterable[Fault | RandomFaults],
    workers: Sequence[WorkerId],
    struck: Collection[Moment],
    most: int,
) -> tuple[Fault, ...]:
    """Return the faults of a launch: all given ones, and ``most`` random ones at most.

    A random fault strikes once in a run, not at its step again after a relaunch.
    """
    given = tuple(given)
    found = tuple(fault for fault in given if isinstance(fault, Fault))
    taken = {fault.address for fault in found}
    drawn = [
        fault
        for several in given
        if isinstance(several, RandomFaults)
        for fault in several.faults(workers)
        if fault.moment not in struck and fault.address not in taken
    ]
    apart = {fault.address: fault for fault in sorted(drawn, key=lambda fault: fault.step)}
    return (*found, *tuple(apart.values())[:most])


def index_faults(faults: Iterable[Fault]) -> dict[Visit, FaultKind]:
    """Return the kind of each fault by its address; raises ``WrongText`` when two have one."""
    kinds: dict[tuple[Visit, str], FaultKind] = {}
    for fault in faults:
        address = (fault.address, fault.host)
        if address in kinds:
            raise WrongText(
                f"'{fault}' and '{kinds[address].value}' strike at one address:"
                " give one of them another step, site or attempt"
            )
        kinds[address] = fault.kind
    return {visit: kind for (visit, _), kind in kinds.items()}


def parse_faults(texts: Iterable[str]) -> tuple[Fault | RandomFaults, ...]:
    """Return what each text describes: a fault, or random ones.  Raises ``WrongText``."""
    return tuple(
        _parse_random(text) if _words(text)[0] == _RANDOM else parse_fault(text) for text in texts
    )


def _parse_random(text: str) -> RandomFaults:
    values = _values(_words(text)[1:], _RANDOM_WORDS, text)
    absent = [key for key in ("seed", "count") if key not in values]
    if absent:
        raise _refusal(text, f"{' and '.join(absent)} must be given")
    seed, count, steps = (
        _number({"steps": str(_RANDOM_STEPS)} | values, key, text) for key in _RANDOM_WORDS
    )
    if count > steps:
        raise _refusal(text, f"{count} faults need {count} steps, and steps is {steps}")
    return RandomFaults(seed, count, steps)


def _words(text: str) -> list[str]:
    return re.split(r"[\s,]+", text.strip(" \t\n,"))


def parse_fault(text: str) -> Fault:
    """Return the fault that ``text`` describes, words separated by spaces or commas.

    The kind comes first.  ``step`` is required, and a ``worker`` or a ``host``.  Raises
    ``WrongText``.
    """
    word, *pairs = _words(text)
    kind = _member(FaultKind, word, text)
    values = _values(pairs, _WORDS, text)
    host = values.pop("host", "")
    victim = "host" if kind.is_of_host else "worker"
    given = {**values, "host": host} if host else values
    absent = [key for key in (victim, "step") if key not in given]
    if host and victim in absent:
        absent.remove(victim)  # a worker may be named by its host
    if absent:
        raise _refusal(text, f"{' and '.join(absent)} must be given")
    if host and "worker" in values:
        raise _refusal(text, "a fault has a worker or a host, not both")
    return Fault(
        kind,
        WorkerId(_number({"worker": "0"} | values, "worker", text)),
        _number(values, "step", text),
        _member(Site, values.get("site", Site.COMPUTE.value), text),
        _number(values, "attempt", text),
        host,
    )


def _values(pairs: Iterable[str], keys: Sequence[str], text: str) -> dict[str, str]:
    """Return the ``key=value`` words as a mapping."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in keys:
            raise _refusal(text, f"'{pair}' is not one of {'=, '.join(keys)}=")
        if key in values:
            raise _refusal(text, f"{key} is given twice")
        values[key] = value
    return values


def _number(values: dict[str, str], key: str, text: str) -> int:
    value = values.get(key, "1")
    if not re.fullmatch(r"[0-9]+", value) or int(value) < _LOWEST[key]:
        raise _refusal(text, f"{key} must be a whole number from {_LOWEST[key]}, got '{value}'")
    return int(value)


_Choice = TypeVar("_Choice", FaultKind, Site)


def _member(choices: type[_Choice], word: str, text: str) -> _Choice:
    """Return the member of ``choices`` whose value is ``word``."""
    try:
        return choices(word)
    except ValueError:
        noun = "kind" if choices is FaultKind else "site"
        allowed = ", ".join(choice.value for choice in choices)
        allowed += f", {_RANDOM}" if choices is FaultKind else ""
        raise _refusal(text, f"the {noun} '{word}' is not one of {allowed}") from None


def _refusal(text: str, reason: str) -> WrongText:
    example = _RANDOM_EXAMPLE if _words(text)[0] == _RANDOM else _EXAMPLE
    return WrongText(f"cannot read the fault '{text}': {reason} (example: {example})")
