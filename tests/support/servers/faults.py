"""Which calls of a faulty file system fail, lie, wait or hang, and how often they have."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of some calls; the first rule that strikes a call decides.

    A rule counts the ``calls`` on names that ``paths`` matches, and strikes from the
    ``first`` to the ``last`` of them.  ``error`` is the name of an errno.  ``is_done`` carries
    the call out all the same: so does a server whose answer was lost, and whose client asks
    again.  A call that ``hangs`` waits until the rules are replaced.
    """

    calls: tuple[str, ...]
    paths: str = "*"
    error: str = ""
    first: int = 1
    last: int | None = None
    is_done: bool = False
    hangs: bool = False
    delay_s: float = 0.0

    @staticmethod
    def of(fields: dict[str, object]) -> Rule:
        """Return the rule with these fields, as ``dataclasses.asdict`` gives them."""
        calls = fields["calls"]
        assert isinstance(calls, (list, tuple))
        return dataclasses.replace(Rule(()), **{**fields, "calls": tuple(calls)})  # type: ignore[arg-type]

    def matches(self, call: str, path: str) -> bool:
        """Return whether the rule counts this call."""
        return call in self.calls and fnmatch.fnmatch(path, self.paths)

    def strikes(self, number: int) -> bool:
        """Return whether the rule changes the call of this number, from 1."""
        return self.first <= number and (self.last is None or number <= self.last)


class FaultTable:
    """The rules that hold now, for the threads that serve calls and for the one that sets them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rules: tuple[Rule, ...] = ()
        self._struck: list[int] = []
        self._counted: list[int] = []

    def set(self, rules: Sequence[Rule]) -> None:
        """Replace all rules and counts, and let go on what hangs."""
        with self._changed:
            self._rules = tuple(rules)
            self._counted, self._struck = [0] * len(rules), [0] * len(rules)
            self._changed.notify_all()

    def meet(self, call: str, path: str) -> Rule | None:
        """Count a call; return the rule that strikes it, if any."""
        with self._changed:
            for index, rule in enumerate(self._rules):
                if not rule.matches(call, path):
                    continue
                self._counted[index] += 1
                if rule.strikes(self._counted[index]):
                    self._struck[index] += 1
                    self._changed.notify_all()
                    return rule
        return None

    def wait_struck(self, index: int, count: int, timeout_s: float) -> int:
        """Wait until a rule has struck so often; return how often it has, after so long at most."""
        with self._changed:
            self._changed.wait_for(lambda: self._struck_by(index) >= count, timeout_s)
            return self._struck_by(index)

    def wait_replaced(self, rule: Rule) -> None:
        """Wait until a rule holds no longer."""
        with self._changed:
            self._changed.wait_for(lambda: not any(rule is held for held in self._rules))

    def _struck_by(self, index: int) -> int:
        return self._struck[index] if index < len(self._struck) else 0


def failure(rule: Rule) -> OSError:
    """Return the error that a rule answers a call with."""
    import errno

    number = getattr(errno, rule.error)
    return OSError(number, os.strerror(number))
