"""What a strike costs is counted for the strike that can have caused it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.tools.strike import PROCESS_BLOWS, Blow, Kind, Target, parse_blows
from holdfast.runtime.tools.summary import Bucket, Span
from holdfast.runtime.tools.verdict import Hit, can_interrupt, pauses, recovery_times, unexplained

S = 1_000_000_000
KILL_WORKER = Blow(Kind.KILL, Target.WORKER)
STOP_AGENT = Blow(Kind.STOP, Target.AGENT)
TERM_POOL = Blow(Kind.TERM, Target.POOL)
KILL_AGENT = Blow(Kind.KILL, Target.AGENT)


def _spans(*parts: tuple[Bucket, float, float]) -> list[Span]:
    return [Span(bucket, round(begin * S), round(end * S)) for bucket, begin, end in parts]


TRAINING, REPAIR, RELAUNCH = Bucket.TRAINING, Bucket.REPAIR, Bucket.RELAUNCH


def test_death_costs_the_time_to_the_end_of_the_repair() -> None:
    spans = _spans((TRAINING, 0, 5), (REPAIR, 5, 6), (TRAINING, 6, 9))

    assert list(recovery_times([Hit(4.5, KILL_WORKER)], spans)) == [1.5]


def test_stopped_agent_is_charged_with_the_relaunch_not_the_harmless_strike_after_it() -> None:
    spans = _spans((TRAINING, 0, 4), (RELAUNCH, 4, 9), (TRAINING, 9, 10))

    times = list(recovery_times([Hit(1, STOP_AGENT), Hit(3, TERM_POOL)], spans))

    assert times == [8, 6]  # the other one waits for the next step that begins


def test_harmless_strike_is_no_pause_and_a_late_step_is_one() -> None:
    """A stopped worker that goes on has no repair, and its step lasts as long as the stop."""
    spans = _spans((TRAINING, 0, 1), (TRAINING, 1, 2), (TRAINING, 2, 6), (REPAIR, 6, 7),
                   (TRAINING, 7, 8), (TRAINING, 8, 9))  # fmt: skip
    hits = [Hit(0.5, TERM_POOL), Hit(2.1, TERM_POOL), Hit(5.9, KILL_WORKER), Hit(8.5, KILL_AGENT)]

    assert list(pauses(hits, spans)) == [False, True, True, False]


def test_second_death_takes_the_gap_over() -> None:
    spans = _spans((TRAINING, 0, 5), (RELAUNCH, 5, 9), (TRAINING, 9, 10))

    times = list(recovery_times([Hit(4, KILL_WORKER), Hit(6, KILL_AGENT)], spans))

    assert times == [5, 3]


def test_gap_without_a_strike_that_explains_it_belongs_to_the_last_one() -> None:
    spans = _spans((TRAINING, 0, 5), (RELAUNCH, 5, 9), (TRAINING, 9, 10))

    assert list(recovery_times([Hit(4, TERM_POOL)], spans)) == [5]


def test_second_gap_of_a_strike_has_no_explanation() -> None:
    later = (RELAUNCH, 20, 25)
    spans = _spans((REPAIR, 0, 1), (TRAINING, 1, 5), (REPAIR, 5, 6), (TRAINING, 6, 20), later)
    hits = [Hit(4.5, KILL_WORKER)]

    assert list(recovery_times(hits, spans)) == [1.5]
    assert list(unexplained(hits, spans)) == _spans((REPAIR, 0, 1), later)


def test_strike_after_the_last_step_has_no_time() -> None:
    spans = _spans((TRAINING, 0, 5), (Bucket.ENDING, 5, 9))

    assert list(recovery_times([Hit(6, KILL_WORKER)], spans)) == [None]


@pytest.mark.parametrize("blow", PROCESS_BLOWS, ids=str)
def test_strikes_on_helpers_do_not_interrupt(blow: Blow) -> None:
    if blow.target in (Target.POOL, Target.WRITER) or blow.kind is Kind.STOP_CONT:
        assert not can_interrupt(blow)
    elif blow.target is Target.AGENT:
        assert can_interrupt(blow)


@pytest.mark.parametrize(
    ("line", "interrupts"),
    [
        ("kill worker", True),
        ("stop guard", True),
        ("kill mpiexec", True),
        ("kill supervisor", False),
        ("term supervisor", True),
        ("term agent", True),
        ("term worker", False),
        ("stop+cont worker", False),
        ("full disk", True),
        ("full shm", True),
        ("full stderr", False),
    ],
)
def test_failure_model_tells_which_strikes_stop_training(line: str, *, interrupts: bool) -> None:
    (blow,) = parse_blows(line)

    assert can_interrupt(blow) is interrupts


_LENGTHS = st.tuples(st.sampled_from([TRAINING, REPAIR, RELAUNCH]), st.integers(1, 5))


@given(
    st.lists(_LENGTHS, max_size=8),
    st.lists(st.tuples(st.integers(-2, 30), st.sampled_from(PROCESS_BLOWS)), max_size=5),
)
def test_each_gap_is_explained_by_one_strike_or_by_none(
    lengths: list[tuple[Bucket, int]], strikes: list[tuple[int, Blow]]
) -> None:
    ends = list(itertools.accumulate(length for _, length in lengths))
    spans = _spans(
        *((b, end - length, end) for (b, length), end in zip(lengths, ends, strict=True))
    )
    hits = [Hit(now, blow) for now, blow in sorted(strikes, key=lambda strike: strike[0])]

    times, paused = list(recovery_times(hits, spans)), list(pauses(hits, spans))

    gaps = [span for span in spans if span.bucket is not TRAINING]
    assert len(times) == len(paused) == len(hits)
    assert all(time is None or time >= 0 for time in times)
    # At most one gap is charged to each hit, and all others are told as unexplained.
    assert 0 <= len(gaps) - len(list(unexplained(hits, spans))) <= sum(paused)
