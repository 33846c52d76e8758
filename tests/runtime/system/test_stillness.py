"""How long something has not changed is counted by the watcher's clock, and never too long."""

from __future__ import annotations

import pytest

from holdfast.runtime.system.witnessed_time import Stillness


class Thing:
    """Something to look at, on a clock that reading it may move."""

    def __init__(self) -> None:
        self.now, self.content, self.takes_s = 100.0, b"a", 0.0
        self.watch = Stillness(lambda: self.now)

    def still_s(self) -> float:
        found, still_s = self.watch.look(self._read)
        assert found == self.content
        return still_s

    def _read(self) -> bytes:
        self.now += self.takes_s
        return self.content


def test_first_look_says_nothing_of_the_time_before() -> None:
    assert Thing().still_s() == 0.0


def test_stillness_is_counted_from_the_first_look_and_begins_anew_at_a_change() -> None:
    thing = Thing()
    found = []
    for now, content in [(100, b"a"), (107, b"a"), (160, b"a"), (161, b"b"), (163, b"b")]:
        thing.now, thing.content = float(now), content
        found.append(thing.still_s())

    assert found == [0.0, 7.0, 60.0, 0.0, 2.0]


def test_slow_look_makes_nothing_older_than_it_is() -> None:
    """It may have read at its end the first time, and at its beginning the second time."""
    thing = Thing()
    thing.takes_s = 20.0

    assert thing.still_s() == 0.0
    thing.now += 5.0
    assert thing.still_s() == 5.0


def test_look_that_fails_is_none() -> None:
    def fail() -> bytes:
        raise OSError(5, "Input/output error")

    thing = Thing()
    thing.still_s()
    thing.now += 9.0
    with pytest.raises(OSError, match="output error"):
        thing.watch.look(fail)

    assert thing.still_s() == 9.0
