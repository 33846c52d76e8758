"""Faults by address, and the errors of decisions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.errors import WrongText
from holdfast.recovery.fault import (
    Fault,
    FaultKind,
    RandomFaults,
    Site,
    Visit,
    faults_of_launch,
    index_faults,
    parse_fault,
    parse_faults,
)
from holdfast.recovery.world import WorkerId

_WHEN = (st.integers(1, 999), st.sampled_from(Site), st.integers(1, 9))
FAULTS = st.builds(
    Fault,
    st.sampled_from([kind for kind in FaultKind if not kind.is_of_host]),
    st.integers(0, 99).map(WorkerId),
    *_WHEN,
) | st.builds(
    Fault,
    st.sampled_from(FaultKind),
    st.just(WorkerId(0)),
    *_WHEN,
    st.sampled_from(["b", "node-1.cluster"]),
)


def test_fault_of_a_host_strikes_its_first_worker() -> None:
    fault = parse_fault("lose host=b step=30")
    places = {WorkerId(4): "a", WorkerId(5): "b", WorkerId(6): "b"}

    placed = fault.placed(places)

    assert str(fault) == "lose host=b step=30 site=compute attempt=1"
    assert placed is not None
    assert placed.address == Visit(WorkerId(5), 30, Site.COMPUTE, 1)
    assert fault.placed({WorkerId(4): ""}) is None
    assert parse_fault("kill worker=4 step=1").placed(places) == parse_fault("kill worker=4 step=1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the kind '' is not one of kill, stop, exit, raise, segfault, gil"),
        ("crash worker=1 step=2", "the kind 'crash' is not one of kill, stop"),
        ("worker=1 step=2", "the kind 'worker=1' is not one of"),
        ("kill", "worker and step must be given"),
        ("kill worker=1", "step must be given"),
        ("kill step=1", "worker must be given"),
        ("lose worker=1 step=2", "host must be given"),
        ("lose host= step=2", "host must be given"),
        ("kill worker=1 host=b step=2", "a fault has a worker or a host, not both"),
        ("kill worker=1 step=2 site=lunch", "the site 'lunch' is not one of compute, reduce, vote"),
        ("kill worker=1 step=2 phase=vote", "'phase=vote' is not one of worker=, step=, site="),
        ("kill worker=1 step=2 vote", "'vote' is not one of worker="),
        ("kill worker=1 step=2 step=3", "step is given twice"),
        ("kill worker=one step=2", "worker must be a whole number from 0, got 'one'"),
        ("kill worker=-1 step=2", "worker must be a whole number from 0, got '-1'"),
        ("kill worker=1 step=0", "step must be a whole number from 1, got '0'"),
        ("kill worker=1 step=2 attempt=0", "attempt must be a whole number from 1"),
        ("kill worker=1 step=²", "step must be a whole number"),
        ("kill worker=1 step=", "step must be a whole number"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(WrongText) as refusal:
        parse_fault(text)

    assert message in str(refusal.value)
    assert f"'{text}'" in str(refusal.value)


def test_two_faults_of_one_address_are_refused() -> None:
    pair = (parse_fault("kill worker=1 step=5"), parse_fault("stop worker=1 step=5"))

    with pytest.raises(WrongText, match="give one of them another step, site or attempt"):
        index_faults(pair)


@given(FAULTS, st.permutations(range(4)), st.sampled_from([" ", ", ", "\t", ",", "  "]))
def test_words_of_a_fault_may_come_in_any_order_and_spacing(
    fault: Fault, order: list[int], gap: str
) -> None:
    kind, *pairs = str(fault).split()

    assert parse_fault(gap.join([kind, *(pairs[place] for place in order)])) == fault


@given(FAULTS)
def test_what_has_a_default_may_be_left_out(fault: Fault) -> None:
    victim = f"host={fault.host}" if fault.host else f"worker={fault.worker}"
    text = f"{fault.kind.value} {victim} step={fault.step}"

    least = Fault(fault.kind, fault.worker, fault.step, Site.COMPUTE, 1, fault.host)
    assert parse_fault(text) == least


@given(st.lists(FAULTS, unique_by=lambda fault: fault.address, max_size=12))
def test_each_fault_of_a_plan_strikes_at_its_own_address(faults: list[Fault]) -> None:
    assert index_faults(faults) == {fault.address: fault.kind for fault in faults}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random", "seed and count must be given"),
        ("random seed=7", "count must be given"),
        ("random seed=7 count=0", "count must be a whole number from 1, got '0'"),
        ("random seed=-7 count=1", "seed must be a whole number from 0, got '-7'"),
        ("random seed=7 count=5 steps=4", "5 faults need 5 steps, and steps is 4"),
        ("random seed=7 count=5 worker=1", "'worker=1' is not one of seed=, count=, steps="),
        ("kill worker=1 step=2 seed=7", "'seed=7' is not one of worker=, step=, site="),
    ],
)
def test_random_faults_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(WrongText) as refusal:
        parse_faults([text])

    assert f"'{text}': {message}" in str(refusal.value)


def test_random_faults_are_read_beside_others() -> None:
    (one, several) = parse_faults(["kill worker=1 step=2", "random seed=7, count=5"])

    assert one == parse_fault("kill worker=1 step=2")
    assert several == RandomFaults(7, 5, steps=100)
    assert parse_faults([str(several)]) == (several,)


def test_a_seed_means_the_same_faults_everywhere() -> None:
    found = RandomFaults(8, 4).faults([WorkerId(0), WorkerId(1), WorkerId(2)])

    assert list(map(str, found)) == [
        "stop worker=1 step=6 site=compute attempt=1",
        "stop worker=2 step=49 site=vote attempt=1",
        "stop worker=0 step=61 site=apply attempt=1",
        "kill worker=1 step=88 site=compute attempt=1",
    ]


@given(st.integers(0), st.integers(1, 20), st.integers(0, 200), st.integers(1, 6))
def test_random_faults_are_spread_over_the_steps_and_over_all_workers(
    seed: int, count: int, more: int, size: int
) -> None:
    steps = count + more
    workers = [WorkerId(10 + place) for place in range(size)]
    found = RandomFaults(seed, count, steps).faults(workers)

    parts = [(fault.step - 1) * count // steps for fault in found]
    assert len(found) == count
    assert all(part in (number, number - 1) for number, part in enumerate(parts))
    assert {fault.kind for fault in found} <= {FaultKind.KILL, FaultKind.STOP}
    for first in range(0, count, size):
        victims = [fault.worker for fault in found[first : first + size]]
        assert len(set(victims)) == len(victims)
    index_faults(found)


_LAUNCH = [WorkerId(4), WorkerId(5)]
_RANDOM = RandomFaults(1, 3)
_DRAWN = _RANDOM.faults(_LAUNCH)


@pytest.mark.parametrize(
    ("struck", "most", "left"),
    [
        ((), 3, [0, 1, 2]),
        ((), 1, [0]),
        ((), 0, []),
        ([_DRAWN[0].moment], 3, [1, 2]),
        ([_DRAWN[0].moment, _DRAWN[1].moment], 1, [2]),
    ],
)
def test_a_launch_is_told_what_has_not_struck_as_far_as_it_may_be_lost(
    struck: list[tuple[object, object]], most: int, left: list[int]
) -> None:
    other = parse_fault("lose host=b step=30")

    found = faults_of_launch([other, _RANDOM], _LAUNCH, struck, most)

    assert found == (other, *(_DRAWN[number] for number in left))


def test_random_faults_give_way_to_those_that_have_an_address() -> None:
    exact = Fault(FaultKind.EXIT, *_address(_DRAWN[1]))

    found = faults_of_launch([_RANDOM, exact], _LAUNCH, (), 3)

    assert found == (exact, _DRAWN[0], _DRAWN[2])


def _address(fault: Fault) -> tuple[WorkerId, int, Site, int]:
    return fault.worker, fault.step, fault.site, fault.attempt
