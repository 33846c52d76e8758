"""Lines of a journal, for tests that care about a few of their fields."""

from __future__ import annotations

import contextlib
from pathlib import Path
from time import monotonic, time
from typing import Any, TypeVar

from holdfast.recovery.event import EVENTS
from holdfast.runtime.run.entries import Entry, entry_of
from holdfast.runtime.run.journal import line_of
from holdfast.runtime.system.codec import WrongValue, field_readers

_Story = TypeVar("_Story", bound="Story")
_ANYTHING = (None, 0, [], "", False)


def line(event: str, now: float, **fields: Any) -> dict[str, Any]:
    """Return a line of the event; a field that readers need has any value unless one is given."""
    kind: Any = EVENTS[event]
    needed = {
        key: _any(read) for _, key, read, has_default in field_readers(kind) if not has_default
    }
    return {"event": event, "now": now, "time": 1e9 + now, "run_id": "r1", **needed, **fields}


def _any(read: Any) -> object:
    for value in _ANYTHING:
        with contextlib.suppress(WrongValue):
            read(value)
            return value
    raise AssertionError


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


class WrittenJournal:
    """The file of a journal, into which a test writes lines."""

    def __init__(self, path: Path, *, run_id: str = "r1", source: str = "head") -> None:
        self._path = path
        self._stamp = {"run_id": run_id, "source": source}
        path.touch()

    def record(self, event: str, **fields: Any) -> None:
        """Append a line of the event, of this moment unless the fields say otherwise."""
        now = fields.pop("now", monotonic())
        stamped = line(event, now, time=time(), **self._stamp)
        others = {name: value for name, value in stamped.items() if name not in fields}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line_of({**others, **fields}) + "\n")

    def close(self) -> None:
        """Do nothing: each line is written whole."""
