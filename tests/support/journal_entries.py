"""Lines of a journal, for tests that care about a few of their fields."""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.runtime.run.entries import Entry, entry_of
from holdfast.runtime.run.event_kinds import EVENTS

_Story = TypeVar("_Story", bound="Story")
_ANYTHING = (0, [], "", False)


def line(event: str, now: float, **fields: Any) -> dict[str, Any]:
    """Return a line of the event; a field that readers need has any value unless one is given."""
    needed = {
        field: next(value for value in _ANYTHING if check.is_one(value))
        for field, check, is_needed, _ in EVENTS[event].fields
        if is_needed
    }
    return {"event": event, "now": now, "time": 1e9 + now, "run_id": "r1", **needed, **fields}


def entry(event: str, now: float, **fields: Any) -> Entry[Any]:
    """Return the line as commands read it."""
    found = entry_of(line(event, now, **fields))
    assert found is not None, f"a {event} with {fields} makes no sense"
    return found


class Story:
    """Writes records as a job would, with a clock that only the story moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.entries: list[Entry[Any]] = []

    def tell(self: _Story, event: str, *, after: float = 0.0, **fields: Any) -> _Story:
        self.now += after
        self.entries.append(entry(event, self.now, **fields))
        return self
