"""Faults to inject, each with an address at which it strikes.

An example is ``kill worker=2 step=30 site=compute attempt=1``. Worker 2 kills itself in
its first attempt to compute the update that makes the step counter 30. An address names
one moment of a job, so any failure can be replayed.

A host in place of a worker means the first worker of a launch on that host: ``lose host=b
step=30``.  Some kinds strike the whole host, and need one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

from holdfast.recovery.errors import FaultConflict, FaultSyntaxError
from holdfast.recovery.world import WorkerId

_LOWEST = {"worker": 0, "step": 1, "attempt": 1}
_EXAMPLE = "kill worker=2 step=30 site=compute attempt=1"


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

    def __str__(self) -> str:
        victim = f"host={self.host}" if self.host else f"worker={self.worker}"
        return (
            f"{self.kind.value} {victim} step={self.step}"
            f" site={self.site.value} attempt={self.attempt}"
        )


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of a job; raises ``FaultConflict`` when two have one address."""

    faults: tuple[Fault, ...] = ()
    _kinds: dict[Visit, FaultKind] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the faults by their addresses."""
        kinds: dict[tuple[Visit, str], FaultKind] = {}
        for fault in self.faults:
            address = (fault.address, fault.host)
            if address in kinds:
                raise FaultConflict(
                    f"'{fault}' and '{kinds[address].value}' strike at one address:"
                    " give one of them another step, site or attempt"
                )
            kinds[address] = fault.kind
        object.__setattr__(self, "_kinds", {visit: kind for (visit, _), kind in kinds.items()})

    def due(self, visit: Visit) -> FaultKind | None:
        """Return the kind of fault that strikes at ``visit``, None if no fault does."""
        return self._kinds.get(visit)


def parse_fault(text: str) -> Fault:
    """Return the fault that ``text`` describes, words separated by spaces or commas.

    The kind comes first.  ``step`` is required, and a ``worker`` or a ``host``.  Raises
    ``FaultSyntaxError``.
    """
    word, *pairs = re.split(r"[\s,]+", text.strip(" \t\n,")) or [""]
    kind = _member(FaultKind, word, text)
    values = _values(pairs, text)
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


def _values(pairs: Iterable[str], text: str) -> dict[str, str]:
    """Return the ``key=value`` words as a mapping."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in (*_LOWEST, "site", "host"):
            raise _refusal(text, f"'{pair}' is not one of worker=, step=, site=, attempt=, host=")
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
    for choice in choices:
        if choice.value == word:
            return choice
    noun = "kind" if choices is FaultKind else "site"
    allowed = ", ".join(choice.value for choice in choices)
    raise _refusal(text, f"the {noun} '{word}' is not one of {allowed}")


def _refusal(text: str, reason: str) -> FaultSyntaxError:
    return FaultSyntaxError(f"cannot read the fault '{text}': {reason} (example: {_EXAMPLE})")
