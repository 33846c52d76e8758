"""Time that a process has witnessed, by its clock, a bound and a look."""

from __future__ import annotations

import threading

import pytest

from holdfast.runtime.system.witnessed_time import Bound, Stillness, WitnessedTime, has_ended


class Host:
    """The clock of a host; it goes on while a process stands still."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def test_clock_counts_what_it_has_seen_and_stands_still_with_its_process() -> None:
    host = Host()
    clock = WitnessedTime(host)
    found = []
    for seconds in (0.5, 1.0, 66.0, 0.5):
        host.pass_by(seconds)
        found.append(clock() - 1000.0)

    assert found == [0.5, 1.5, 2.75, 3.25]


@pytest.mark.parametrize(
    ("limit_s", "looks", "left_s"),
    [
        pytest.param(60.0, [1.0] * 59, 1.0, id="nearly over"),
        pytest.param(60.0, [1.0] * 61, 0.0, id="over"),
        pytest.param(60.0, [1.0, 66.0, 1.0], 56.75, id="a pause counts as one look"),
        pytest.param(2.0, [66.0, 66.0, 66.0], 0.5, id="a short bound takes four looks"),
        pytest.param(2.0, [66.0, 66.0, 66.0, 66.0], 0.0, id="four looks"),
        pytest.param(0.0, [], 0.0, id="no time at all"),
    ],
)
def test_bound_ends_by_the_time_that_was_looked_at(
    limit_s: float, looks: list[float], left_s: float
) -> None:
    host = Host()
    bound = Bound(limit_s, host)
    left = limit_s
    for seconds in looks:
        host.pass_by(seconds)
        left = bound.left_s()

    assert left == left_s
    assert bound.has_passed == (left_s == 0.0)


@pytest.mark.parametrize("pauses", [0, 1, 5])
def test_wait_goes_on_after_a_pause_and_finds_what_has_come_meanwhile(pauses: int) -> None:
    host, asked = Host(), []

    def wait(seconds: float) -> str:
        asked.append(seconds)
        host.pass_by(66.0 if len(asked) <= pauses else seconds)
        return "found" if len(asked) > pauses + 2 else ""

    assert Bound(60.0, host).wait(wait) == "found"
    assert max(asked) <= 1.0


def test_wait_in_vain_ends_after_its_bound_and_looks_at_least_once() -> None:
    host = Host()

    def wait(seconds: float) -> list[int]:
        host.pass_by(seconds)
        return []

    assert Bound(15.0, host).wait(wait) == []
    assert 1015.0 <= host.now < 1016.0
    assert Bound(0.0, host).wait(wait) == []


def test_end_of_a_thread_is_waited_for_within_a_bound() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()

    assert not has_ended(thread, Bound(0.01))
    go.set()
    assert has_ended(thread, Bound(60.0))


class Thing:
    """Something to look at, on a clock that reading it may move."""

    def __init__(self) -> None:
        self.now, self.content, self.takes_s = 100.0, b"a", 0.0
        self.watch = Stillness(lambda: self.now)

    def still_s(self) -> float:
        found, still_s = self.watch.poll(self._read)
        assert found == self.content
        return still_s

    def _read(self) -> bytes:
        self.now += self.takes_s
        return self.content


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
        thing.watch.poll(fail)

    assert thing.still_s() == 9.0
