"""When a strike from outside is due, which processes it finds, and what a seed means."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from striker import (
    BLOWS,
    Kind,
    Strike,
    Target,
    blows_of,
    find_victims,
    strikes_by_the_clock,
)

JOURNAL: list[dict[str, Any]] = [
    {"event": "launch"},
    {"event": "step", "step": 1},
    {"event": "step", "step": 8},
    {"event": "checkpoint", "step": 8},
]
PROCESSES = {
    40: "holdfast-agent",
    47: "holdfast-w12",
    43: "holdfast-w3",
    44: "holdfast-pool",
    50: "holdfast-w3b",
    51: "holdfast-host",
}


@pytest.mark.parametrize(
    ("event", "number", "is_due"),
    [
        ("step", 0, True),
        ("step", 7, True),
        ("step", 9, False),
        ("checkpoint", 1, True),
        ("checkpoint", 2, False),
        ("second", 2.5, True),
        ("second", 3.5, False),
    ],
)
def test_strike_is_due_at_its_moment(event: str, number: float, *, is_due: bool) -> None:
    strike = Strike(Kind.KILL, Target.AGENT, event=event, number=number)

    assert strike.is_due(JOURNAL, 3.0) == is_due


@pytest.mark.parametrize(
    ("target", "found"),
    [
        (Target.WORKER, [43, 47]),
        (Target.AGENT, [40]),
        (Target.HOST_AGENT, [51]),
        (Target.WRITER, []),
        (Target.CLIENT, [60]),
    ],
)
def test_processes_are_known_by_their_names(target: Target, found: list[int]) -> None:
    assert find_victims(target, PROCESSES, client=60) == found


def test_kinds_are_named_by_words() -> None:
    assert len(blows_of("stop")) == 7
    assert blows_of("kill agent, term client") == (
        (Kind.KILL, Target.AGENT),
        (Kind.TERM, Target.CLIENT),
    )
    with pytest.raises(ValueError, match="no strike is 'kill moon'; words: kill, stop"):
        blows_of("kill moon")


def test_strikes_by_the_clock_come_as_often_as_wished() -> None:
    strikes = list(strikes_by_the_clock(random.Random(7), 60.0, 60_000.0, BLOWS))

    assert 900 < len(strikes) < 1100
    assert all(one.number < other.number for one, other in pairwise(strikes))
