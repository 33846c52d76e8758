"""Faults to inject, each with an address at which it strikes.

An example is ``kill worker=2 step=30 site=compute attempt=1``. Worker 2 kills itself in
its first attempt to compute the update that makes the step counter 30. An address names
one moment of a job, so any failure can be replayed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
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
    """One failure to inject; ``step`` is the counter that the current update would reach."""

    kind: FaultKind
    worker: WorkerId
    step: int
    site: Site = Site.COMPUTE
    attempt: int = 1

    @property
    def address(self) -> Visit:
        """The moment at which the fault strikes."""
        return Visit(self.worker, self.step, self.site, self.attempt)

    def __str__(self) -> str:
        return (
            f"{self.kind.value} worker={self.worker} step={self.step}"
            f" site={self.site.value} attempt={self.attempt}"
        )


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of a job; raises ``FaultConflict`` when two have one address."""

    faults: tuple[Fault, ...] = ()
    _kinds: dict[Visit, FaultKind] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the faults by their addresses."""
        kinds: dict[Visit, FaultKind] = {}
        for fault in self.faults:
            if fault.address in kinds:
                raise FaultConflict(
                    f"'{fault}' and '{kinds[fault.address].value}' strike at one address:"
                    " give one of them another step, site or attempt"
                )
            kinds[fault.address] = fault.kind
        object.__setattr__(self, "_kinds", kinds)

    def due(self, visit: Visit) -> FaultKind | None:
        """Return the kind of fault that strikes at ``visit``, None if no fault does."""
        return self._kinds.get(visit)


def parse_fault(text: str) -> Fault:
    """Return the fault that ``text`` describes, words separated by spaces or commas.

    The kind comes first; ``worker`` and ``step`` are required. Raises ``FaultSyntaxError``.
    """
    word, *pairs = re.split(r"[\s,]+", text.strip(" \t\n,")) or [""]
    kind = _member(FaultKind, word, text)
    values = _values(pairs, text)
    absent = [key for key in ("worker", "step") if key not in values]
    if absent:
        raise _refusal(text, f"{' and '.join(absent)} must be given")
    return Fault(
        kind,
        WorkerId(_number(values, "worker", text)),
        _number(values, "step", text),
        _member(Site, values.get("site", Site.COMPUTE.value), text),
        _number(values, "attempt", text),
    )


def _values(pairs: Iterable[str], text: str) -> dict[str, str]:
    """Return the ``key=value`` words as a mapping."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or key not in (*_LOWEST, "site"):
            raise _refusal(text, f"'{pair}' is not one of worker=, step=, site=, attempt=")
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
