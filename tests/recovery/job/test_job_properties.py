"""What the supervisor decides by: faults, schedules, budgets, what it knows, and the end."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.errors import FaultSyntaxError, ScheduleSyntaxError
from holdfast.recovery.event import (
    AskToStop,
    CheckpointCommitted,
    End,
    KillLaunch,
    Launch,
    LaunchEnded,
    StopAsked,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.fault import Fault, FaultKind, FaultPlan, Site, Visit, parse_fault
from holdfast.recovery.job import (
    CHECKPOINTS_OF_A_REFUND,
    JobMachine,
    JobState,
    JobTerms,
    RestartBudget,
)
from holdfast.recovery.launch import LaunchView, Sight, conclude
from holdfast.recovery.schedule import (
    FIRST_SAVE_S,
    LARGEST_SHARE,
    PRIOR_S,
    Auto,
    EachEpoch,
    EverySeconds,
    EverySteps,
    FailureHistory,
    best_interval_s,
    interval_s,
    parse_schedule,
)
from holdfast.recovery.world import WorkerId

# --- faults -------------------------------------------------------------------------------------

FAULTS = st.builds(
    Fault,
    st.sampled_from(FaultKind),
    st.integers(0, 99).map(WorkerId),
    st.integers(1, 999),
    st.sampled_from(Site),
    st.integers(1, 9),
)


@given(FAULTS, st.permutations(range(4)), st.sampled_from([" ", ", ", "\t", ",", "  "]))
def test_words_of_a_fault_may_come_in_any_order_and_spacing(
    fault: Fault, order: list[int], gap: str
) -> None:
    kind, *pairs = str(fault).split()

    assert parse_fault(gap.join([kind, *(pairs[place] for place in order)])) == fault


@given(FAULTS)
def test_what_has_a_default_may_be_left_out(fault: Fault) -> None:
    text = f"{fault.kind.value} worker={fault.worker} step={fault.step}"

    assert parse_fault(text) == Fault(fault.kind, fault.worker, fault.step, Site.COMPUTE, 1)


@given(FAULTS, st.integers(1, 4))
def test_word_given_twice_is_refused_by_name(fault: Fault, place: int) -> None:
    word = str(fault).split()[place]

    with pytest.raises(FaultSyntaxError, match=f"{word.partition('=')[0]} is given twice"):
        parse_fault(f"{fault} {word}")


@given(st.text(max_size=30))
def test_any_text_is_a_fault_or_refused_with_an_example(text: str) -> None:
    try:
        fault = parse_fault(text)
    except FaultSyntaxError as refused:
        said = str(refused)
    else:
        said = f"example: {fault}"
    assert "example: " in said


@given(st.lists(FAULTS, unique_by=lambda fault: fault.address, max_size=12))
def test_each_fault_of_a_plan_strikes_at_its_own_address(faults: list[Fault]) -> None:
    plan = FaultPlan(tuple(faults))

    assert [plan.due(fault.address) for fault in faults] == [fault.kind for fault in faults]
    later = [Visit(fault.worker, fault.step, fault.site, fault.attempt + 9) for fault in faults]
    assert [plan.due(visit) for visit in later] == [None] * len(faults)


# --- schedules ----------------------------------------------------------------------------------

UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@given(st.integers(1, 10**9))
def test_number_and_its_text_are_the_same_schedule(steps: int) -> None:
    assert parse_schedule(steps) == parse_schedule(str(steps)) == EverySteps(steps)


@given(st.integers(1, 9999), st.sampled_from(sorted(UNITS)), st.sampled_from(["", " ", "  "]))
def test_time_is_read_in_each_unit(count: int, unit: str, gap: str) -> None:
    found = parse_schedule(f" {count}{gap}{unit.upper()} ")

    assert found == EverySeconds(float(count) * UNITS[unit])


@given(st.integers(-(10**9), 0))
def test_no_steps_at_all_are_refused(steps: int) -> None:
    for value in (steps, str(steps)):
        with pytest.raises(ScheduleSyntaxError, match="at least 1"):
            parse_schedule(value)


@given(st.floats(0.0, 1e5), st.integers(0, 1000))
def test_mean_time_is_between_the_prior_and_what_was_seen(seconds: float, failures: int) -> None:
    mean_s = FailureHistory(seconds, failures).mean_time_between_failures_s

    assert 0 < mean_s <= seconds + PRIOR_S
    assert FailureHistory(seconds, failures + 1).mean_time_between_failures_s < mean_s
    assert FailureHistory(seconds + 1, failures).mean_time_between_failures_s > mean_s


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=9), st.integers(0, 50))
def test_auto_goes_by_the_middle_cost(costs_s: list[float], failures: int) -> None:
    history = FailureHistory(3600.0, failures)
    middle = sorted(costs_s)[len(costs_s) // 2]

    odd = [*costs_s, middle] if len(costs_s) % 2 == 0 else costs_s
    found = interval_s(Auto(), odd, history)

    middle = sorted(odd)[len(odd) // 2]
    assert found == best_interval_s(middle, history.mean_time_between_failures_s)
    assert found is not None
    assert middle / found <= LARGEST_SHARE * (1 + 1e-9)


@given(st.lists(st.floats(0.01, 100), max_size=5))
def test_clock_decides_for_times_and_the_cursor_for_the_rest(costs_s: list[float]) -> None:
    history = FailureHistory()

    assert interval_s(EverySeconds(12.5), costs_s, history) == 12.5
    assert interval_s(EverySteps(3), costs_s, history) is None
    assert interval_s(EachEpoch(), costs_s, history) is None
    assert interval_s(Auto(), (), history) == FIRST_SAVE_S


@given(st.floats(0.02, 10), st.floats(3600, 1e7))
def test_interval_grows_with_the_root_of_both(cost_s: float, mean_s: float) -> None:
    short = best_interval_s(cost_s, mean_s)

    long = best_interval_s(cost_s, 4 * mean_s)

    assert short <= long <= 2 * short * (1 + 1e-9)


# --- budgets ------------------------------------------------------------------------------------


@given(st.integers(0, 20), st.lists(st.integers(0, 2), max_size=40))
def test_budget_is_spent_by_what_was_charged_in_any_order(limit: int, progress: list[int]) -> None:
    """Too few checkpoints for a refund."""
    straight, backwards = RestartBudget(limit), RestartBudget(limit)
    for made, reversed_ in zip(progress, reversed(progress), strict=True):
        straight = straight.charge(made)
        backwards = backwards.charge(reversed_)

    assert straight == backwards
    assert straight.spent == len(progress) + progress.count(0)
    assert straight.is_spent is (straight.spent > limit)


@given(st.integers(1, 20), st.lists(st.integers(0, 12), max_size=40))
def test_charge_never_exceeds_what_it_would_be_without_refunds(
    limit: int, progress: list[int]
) -> None:
    budget, spent = RestartBudget(limit), 0
    for checkpoints in progress:
        budget = budget.charge(checkpoints)
        spent += 1 if checkpoints else 2

        assert 1 <= budget.spent <= spent


@given(st.integers(1, 20))
def test_job_whose_every_launch_goes_on_for_long_is_relaunched_for_ever(limit: int) -> None:
    budget = RestartBudget(limit)
    for _ in range(1000):
        budget = budget.charge(CHECKPOINTS_OF_A_REFUND)

        assert not budget.is_spent


@given(st.integers(0, 20))
def test_job_that_makes_progress_is_relaunched_as_often_as_allowed(limit: int) -> None:
    budget = RestartBudget(limit)
    relaunches = 0
    while not (budget := budget.charge(1)).is_spent:
        relaunches += 1

    assert relaunches == limit


# --- what is known of a launch ------------------------------------------------------------------

WORKERS = tuple(map(WorkerId, range(4)))
MEMBERS = st.sampled_from(WORKERS)
STEPS = st.integers(1, 3)
SIGHTS: st.SearchStrategy[Sight] = st.one_of(
    st.builds(WorkerJoined, MEMBERS),
    st.builds(
        WorldFormed,
        st.integers(1, 6),
        st.sets(MEMBERS, min_size=1).map(lambda found: tuple(sorted(found))),
        STEPS,
    ),
    st.builds(CheckpointCommitted, MEMBERS, STEPS),
    st.builds(WorkerFailed, MEMBERS, st.sampled_from(["A", "B"]), st.just("m"), st.just(""),
              st.just(1), st.booleans()),
    st.builds(
        WorkerCompleted, MEMBERS, STEPS, st.sampled_from(["cafe", "beef"]), st.booleans()
    ),
    st.builds(WorkerStopped, MEMBERS, STEPS),
    st.builds(WorkerExited, MEMBERS, st.booleans(), st.just("exit 1")),
)  # fmt: skip
HISTORIES = st.lists(SIGHTS, max_size=25)


def view_of(sights: list[Sight]) -> LaunchView:
    view = LaunchView.of(WORKERS, 1)
    for sight in sights:
        view = view.seeing(sight)
    return view


@given(HISTORIES)
def test_all_that_is_seen_of_a_launch_concerns_it(sights: list[Sight]) -> None:
    view = view_of(sights)

    assert view.workers == WORKERS
    assert all(view.concerns(sight) for sight in sights)
    saved = [sight.step for sight in sights if isinstance(sight, CheckpointCommitted)]
    newest = list(itertools.accumulate(saved, max))
    assert view.checkpoints == len(set(newest))
    assert view.was_formed is any(isinstance(sight, WorldFormed) for sight in sights)


@given(HISTORIES)
def test_world_is_the_last_of_the_highest_generation(sights: list[Sight]) -> None:
    formed = [sight for sight in sights if isinstance(sight, WorldFormed)]
    highest = max((world.generation for world in formed), default=1)
    newest = [world.workers for world in formed if world.generation == highest]

    assert view_of(sights).world == (newest[-1] if newest else WORKERS)
    assert view_of(sights).generation == highest


@given(HISTORIES)
def test_launch_is_up_once_every_worker_has_joined(sights: list[Sight]) -> None:
    joined = {sight.worker for sight in sights if isinstance(sight, WorkerJoined)}

    assert view_of(sights).is_up is (joined == set(WORKERS))


@given(HISTORIES, SIGHTS)
def test_seeing_something_twice_tells_nothing_new_of_the_end(
    sights: list[Sight], more: Sight
) -> None:
    once = view_of([*sights, more])

    assert conclude(once.seeing(more), None) == conclude(once, None)


@given(HISTORIES, st.sampled_from([None, 130, 143]))
def test_wish_to_stop_decides_only_what_nothing_else_does(
    sights: list[Sight], stop_code: int | None
) -> None:
    view = view_of(sights)
    unasked, asked = conclude(view, None), conclude(view, stop_code)

    if unasked is not None:
        assert asked == unasked
    else:
        assert (asked.exit_code if asked else None) == stop_code


@given(HISTORIES)
def test_launch_of_which_nobody_came_to_an_end_may_be_relaunched(sights: list[Sight]) -> None:
    deaths = [
        sight
        for sight in sights
        if not isinstance(sight, (WorkerCompleted, WorkerStopped))
        and not (isinstance(sight, WorkerFailed) and not sight.is_death)
        and not (isinstance(sight, WorkerExited) and sight.is_clean)
    ]

    assert conclude(view_of(deaths), None) is None


@given(HISTORIES)
def test_different_bytes_of_one_step_are_never_a_success(sights: list[Sight]) -> None:
    told = [
        WorkerCompleted(WORKERS[0], 9, "cafe", is_first=True),
        WorkerCompleted(WORKERS[1], 9, "beef", is_first=False),
    ]

    end = conclude(view_of([*sights, *told]), None)

    assert end is not None
    assert end.exit_code == 70


# --- the job ------------------------------------------------------------------------------------


@given(workers=st.integers(1, 5), limit=st.integers(0, 6), saves=st.booleans())
def test_job_that_only_dies_is_relaunched_until_its_budget_is_spent(
    workers: int, limit: int, *, saves: bool
) -> None:
    machine = JobMachine(JobTerms(workers, limit, can_shrink=True))
    (command,) = machine.start()
    launches = 0
    while isinstance(command, Launch):
        launches += 1
        assert (command.relaunch, len(command.workers)) == (launches - 1, workers)
        if saves:
            machine.handle(CheckpointCommitted(command.workers[0], 1))
        for worker in command.workers:
            machine.handle(WorkerJoined(worker))
        for worker in command.workers:
            assert machine.handle(WorkerExited(worker, is_clean=False, cause="signal 9")) == ()
        (command,) = machine.handle(LaunchEnded())

    assert isinstance(command, End)
    assert command.exit_code == 70
    assert launches == 1 + (limit if saves else limit // 2)


@given(st.integers(2, 6), st.data())
def test_relaunch_is_whole_after_a_checkpoint_and_else_as_large_as_the_newest_world(
    workers: int, data: st.DataObject
) -> None:
    machine = JobMachine(JobTerms(workers, 9, can_shrink=True))
    (first,) = machine.start()
    assert isinstance(first, Launch)
    survivors = data.draw(st.sets(st.sampled_from(first.workers), min_size=1))
    machine.handle(WorldFormed(first.generation + 1, tuple(sorted(survivors)), 5))
    got_on = data.draw(st.booleans())
    if got_on:
        machine.handle(CheckpointCommitted(min(survivors), 5))

    (second,) = machine.handle(LaunchEnded("lost"))

    assert isinstance(second, Launch)
    assert len(second.workers) == (workers if got_on else len(survivors))
    assert min(second.workers) > max(first.workers)
    assert second.generation >= first.generation + workers


@pytest.mark.parametrize("can_shrink", [True, False])
def test_death_in_a_running_job_is_its_workers_business_if_worlds_shrink(
    *, can_shrink: bool
) -> None:
    machine = JobMachine(JobTerms(2, 1, can_shrink=can_shrink))
    (launch,) = machine.start()
    assert isinstance(launch, Launch)
    for worker in launch.workers:
        machine.handle(WorkerJoined(worker))

    commands = machine.handle(WorkerExited(launch.workers[0], is_clean=False, cause="signal 9"))

    assert [type(command) for command in commands] == ([] if can_shrink else [KillLaunch])
    assert machine.state is (JobState.RUNNING if can_shrink else JobState.ENDING)


@given(st.integers(1, 4), st.lists(st.sampled_from([130, 143]), min_size=1, max_size=5))
def test_first_wish_asks_and_every_later_one_does_not_ask_again(
    workers: int, codes: list[int]
) -> None:
    machine = JobMachine(JobTerms(workers, 3, can_shrink=True))
    (launch,) = machine.start()
    assert isinstance(launch, Launch)
    for worker in launch.workers:
        machine.handle(WorkerJoined(worker))

    answers = [machine.handle(StopAsked(code)) for code in codes]
    (end,) = machine.handle(LaunchEnded())

    assert answers[0] == (AskToStop(),)
    kinds = [type(command) for answer in answers[1:] for command in answer]
    assert kinds == [KillLaunch][: len(codes) - 1]
    assert isinstance(end, End)
    assert end.exit_code == codes[min(1, len(codes) - 1)]  # of the one that killed the launch


def test_interval_of_no_failures_is_finite() -> None:
    assert math.isfinite(best_interval_s(1.0, FailureHistory().mean_time_between_failures_s))
