"""Each victim that the kernel has counted explains one death."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.host.host_limits import OomWitness


def test_victims_of_before_explain_nothing() -> None:
    assert OomWitness(3).observe(3, 1.0).claim() is None


def test_victim_explains_one_death() -> None:
    claimed = OomWitness(3).observe(4, 1.0).claim()

    assert claimed is not None
    assert claimed.observe(4, 1.1).claim() is None


def test_process_that_takes_some_looks_to_end_is_still_a_victim() -> None:
    witness = OomWitness(0).observe(1, 1.0).observe(1, 3.0).observe(1, 30.0)

    assert witness.claim() is not None


def test_victim_that_was_none_of_ours_is_forgotten_after_a_minute() -> None:
    assert OomWitness(0).observe(1, 1.0).observe(1, 62.0).claim() is None


def test_count_that_cannot_be_read_for_once_changes_nothing() -> None:
    """The next one that can be read is compared with the last one."""
    witness = OomWitness().observe(None, 0.0).observe(5, 1.0).observe(None, 2.0)

    assert witness.observe(5, 3.0).claim() is None
    assert witness.observe(6, 3.0).claim() is not None


def test_counter_that_begins_anew_explains_nothing() -> None:
    """The job was moved to another group."""
    assert OomWitness(5).observe(0, 1.0).claim() is None


@given(st.lists(st.integers(0, 3), max_size=20), st.integers(0, 100))
def test_no_more_deaths_are_explained_than_were_counted(fresh: list[int], before: int) -> None:
    witness, count, explained = OomWitness(before), before, 0
    for now, more in enumerate(fresh):
        count += more
        witness = witness.observe(count, float(now))
        while (claimed := witness.claim()) is not None:
            witness, explained = claimed, explained + 1

    assert explained == count - before
