from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.errors import FaultConflict, FaultSyntaxError
from holdfast.recovery.fault import Fault, FaultKind, FaultPlan, Site, Visit, parse_fault
from holdfast.recovery.world import WorkerId

faults = st.builds(
    Fault,
    st.sampled_from(FaultKind),
    st.integers(0, 10**6).map(WorkerId),
    st.integers(1, 10**9),
    st.sampled_from(Site),
    st.integers(1, 99),
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kill worker=2 step=30", Fault(FaultKind.KILL, WorkerId(2), 30, Site.COMPUTE, 1)),
        ("stop,worker=0,step=1,site=vote", Fault(FaultKind.STOP, WorkerId(0), 1, Site.VOTE, 1)),
        (
            "  gil  attempt=3, site=save , step=7 worker=11 ",
            Fault(FaultKind.GIL, WorkerId(11), 7, Site.SAVE, 3),
        ),
    ],
)
def test_fault_is_read_from_words_in_any_order(text: str, expected: Fault) -> None:
    assert parse_fault(text) == expected


@given(faults)
def test_text_of_a_fault_reads_back_as_the_fault(fault: Fault) -> None:
    assert parse_fault(str(fault)) == fault


def test_text_of_a_fault_spells_its_whole_address() -> None:
    fault = Fault(FaultKind.KILL, WorkerId(2), 30)

    assert str(fault) == "kill worker=2 step=30 site=compute attempt=1"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the kind '' is not one of kill, stop, exit, raise, segfault, gil"),
        ("crash worker=1 step=2", "the kind 'crash' is not one of kill, stop"),
        ("worker=1 step=2", "the kind 'worker=1' is not one of"),
        ("kill", "worker and step must be given"),
        ("kill worker=1", "step must be given"),
        ("kill step=1", "worker must be given"),
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
    with pytest.raises(FaultSyntaxError) as refusal:
        parse_fault(text)

    assert message in str(refusal.value)
    assert f"'{text}'" in str(refusal.value)


def test_fault_strikes_at_its_address_only() -> None:
    plan = FaultPlan((parse_fault("kill worker=2 step=30 site=vote attempt=2"),))
    strike = Visit(WorkerId(2), 30, Site.VOTE, 2)

    assert plan.due(strike) is FaultKind.KILL
    for other in (
        Visit(WorkerId(1), 30, Site.VOTE, 2),
        Visit(WorkerId(2), 31, Site.VOTE, 2),
        Visit(WorkerId(2), 30, Site.APPLY, 2),
        Visit(WorkerId(2), 30, Site.VOTE, 1),
    ):
        assert plan.due(other) is None


def test_several_workers_may_be_struck_at_one_step() -> None:
    plan = FaultPlan((parse_fault("kill worker=1 step=5"), parse_fault("stop worker=2 step=5")))

    assert plan.due(Visit(WorkerId(1), 5, Site.COMPUTE, 1)) is FaultKind.KILL
    assert plan.due(Visit(WorkerId(2), 5, Site.COMPUTE, 1)) is FaultKind.STOP


def test_two_faults_of_one_address_are_refused() -> None:
    pair = (parse_fault("kill worker=1 step=5"), parse_fault("stop worker=1 step=5"))

    with pytest.raises(FaultConflict, match="give one of them another step, site or attempt"):
        FaultPlan(pair)


def test_empty_plan_never_strikes() -> None:
    assert FaultPlan().due(Visit(WorkerId(0), 1, Site.COMPUTE, 1)) is None
