"""The course of a job: every transcript, and whatever else may come."""

from __future__ import annotations

from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.errors import ExitCode, IllegalTransition
from holdfast.recovery.event import (
    AbandonLaunch,
    AskToStop,
    CheckpointCommitted,
    Command,
    End,
    Event,
    HostLost,
    KillLaunch,
    Launch,
    LaunchEnded,
    LaunchOverdue,
    Renew,
    StopAsked,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.job import (
    JobMachine,
    JobState,
    JobTerms,
    RestartBudget,
)
from holdfast.recovery.world import WorkerId

Transcript: TypeAlias = list[tuple[Event, str]]
"""Events, each with what the machine answers: see ``told``."""


ENDED, STOP, LATE = LaunchEnded(), StopAsked(130), LaunchOverdue("too long")

_WORKERS = st.integers(0, 8)
_TERMS = st.builds(JobTerms, st.integers(1, 4), st.integers(0, 4), st.booleans())


def joined(worker: int) -> Event:
    return WorkerJoined(WorkerId(worker))


def formed(generation: int, *workers: int) -> Event:
    return WorldFormed(generation, tuple(map(WorkerId, workers)), 0)


def saved(worker: int = 0) -> Event:
    return CheckpointCommitted(WorkerId(worker), 10)


def raised(worker: int, kind: str = "ValueError", *, is_death: bool = False) -> Event:
    return WorkerFailed(WorkerId(worker), kind, "bad sample", "Traceback ...", 1, is_death)


def completed(worker: int, sha256: str = "cafe", step: int = 20) -> Event:
    """Return a completion; in launches of three, the first worker has rank 0."""
    return WorkerCompleted(WorkerId(worker), step, sha256, is_first=worker % 3 == 0)


def slots(left: int) -> HostLost:
    return HostLost("b", "", (), left)


def stopped(worker: int) -> Event:
    return WorkerStopped(WorkerId(worker), 7)


def left(worker: int) -> Event:
    return WorkerExited(WorkerId(worker), is_clean=True, cause="exit 0")


def died(worker: int, cause: str = "signal SIGKILL") -> Event:
    return WorkerExited(WorkerId(worker), is_clean=False, cause=cause)


def told(commands: tuple[Command, ...]) -> str:
    """Return the machine's answer in a few words."""
    return " ".join(map(_word, commands))


def _word(command: Command) -> str:
    match command:
        case Launch(generation, workers, _, _):
            return f"launch {'+'.join(map(str, workers))} at g{generation}"
        case KillLaunch(_, is_urgent):
            return "kill now" if is_urgent else "kill"
        case AbandonLaunch():
            return "kill agent"
        case AskToStop():
            return "ask"
        case Renew():
            return "renew"
        case End(exit_code, _, _):
            return f"end {exit_code}"


def machine_of(workers: int = 3, restarts: int = 5, *, can_shrink: bool = True) -> JobMachine:
    machine = JobMachine(JobTerms(workers, restarts, can_shrink))
    machine.start()
    return machine


def quiet(*events: Event) -> Transcript:
    return [(event, "") for event in events]


def feed(machine: JobMachine, transcript: Transcript) -> None:
    for number, (event, answer) in enumerate(transcript):
        assert told(machine.handle(event)) == answer, (number, event)


UP = quiet(joined(0), joined(1), joined(2), formed(1, 0, 1, 2))

TRANSCRIPTS: dict[str, Transcript] = {
    "nothing happens": [
        *UP,
        *quiet(completed(0), completed(1), completed(2), left(0), left(1), left(2)),
        (ENDED, "end 0"),
    ],
    "one worker dies and the others finish": [
        *UP,
        *quiet(died(1), formed(2, 0, 2), completed(0), completed(2), left(2), left(0)),
        (ENDED, "end 0"),
    ],
    "all die after a checkpoint, and as many as before are launched": [
        *UP,
        *quiet(saved(), died(1), formed(2, 0, 2), died(0), died(2)),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "all die without a checkpoint, the last world is launched again": [
        *UP,
        *quiet(died(1), formed(2, 0, 2), died(0), died(2)),
        (ENDED, "launch 3+4 at g4"),
    ],
    "a death before MPI is up ends the launch": [
        *quiet(joined(0), joined(1)),
        (died(2), "kill"),
        *quiet(died(0), died(1)),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "a worker that could not be started ends the launch": [
        (died(0, "not started: no memory"), "kill"),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "a worker joins a launch that is being killed": [
        (died(2), "kill"),
        *quiet(joined(0), joined(1), died(0), died(1)),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "mpiexec starts nobody": [
        (LaunchEnded("mpiexec started no worker"), "launch 3+4+5 at g4"),
    ],
    "reports of the old launch come while the new one starts": [
        (ENDED, "launch 3+4+5 at g4"),
        *quiet(joined(0), died(1), formed(9, 0, 2), completed(0), left(0), saved(0), stopped(2)),
        *quiet(joined(3), joined(4), joined(5), formed(4, 3, 4, 5)),
        *quiet(joined(1), died(0), *map(died, (3, 4, 5))),
        (ENDED, "launch 6+7+8 at g7"),
    ],
    "a world is reported after one of its members is gone": [
        *UP,
        *quiet(died(2), died(1), formed(2, 0, 1), formed(3, 0), completed(0), left(0)),
        (ENDED, "end 0"),
    ],
    "an old world is reported after a new one": [
        *UP,
        *quiet(died(2), formed(3, 0), formed(2, 0, 1), died(0), died(1)),
        (ENDED, "launch 3 at g4"),
    ],
    "stop while training": [
        *UP,
        (STOP, "ask"),
        *quiet(stopped(0), stopped(1), stopped(2), left(0), left(1), left(2)),
        (ENDED, "end 75"),
    ],
    "stop twice": [
        *UP,
        (STOP, "ask"),
        (STOP, "kill now"),
        *quiet(died(0), died(1), died(2)),
        (ENDED, "end 130"),
    ],
    "stop while launching": [
        *quiet(joined(0)),
        (STOP, "kill"),
        *quiet(died(0), died(1), died(2)),
        (ENDED, "end 75"),
    ],
    "stop before any worker started": [(STOP, "kill"), (ENDED, "end 75")],
    "stop that takes longer than its grace": [
        *UP,
        (STOP, "ask"),
        (LATE, "kill"),
        *quiet(died(0), died(1), died(2)),
        (ENDED, "end 130"),
    ],
    "launch that does not come up": [
        *quiet(joined(0)),
        (LATE, "kill"),
        *quiet(died(0), died(1), died(2)),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "launch that comes up no more and does not end either": [
        (LATE, "kill"),
        (LATE, "kill agent"),
        *quiet(died(0), died(1), died(2)),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "stop while a launch that failed is being killed": [
        (died(0), "kill"),
        (STOP, ""),
        *quiet(died(1), died(2)),
        (ENDED, "end 75"),
    ],
    "all die after they completed, so the script did not come to its end": [
        *UP,
        *quiet(*map(completed, (0, 1, 2)), saved(), *map(died, (0, 1, 2))),
        (ENDED, "launch 3+4+5 at g4"),
        *quiet(joined(3), joined(4), joined(5), formed(4, 3, 4, 5)),
        *quiet(*map(completed, (3, 4, 5)), *map(left, (3, 4, 5))),
        (ENDED, "end 0"),
    ],
    "killed by the user after it completed, before the script came to its end": [
        *UP,
        *quiet(*map(completed, (0, 1, 2))),
        (STOP, "ask"),
        (STOP, "kill now"),
        *quiet(*map(died, (0, 1, 2))),
        (ENDED, "end 130"),
    ],
    "a bad sample kills one owner after the other": [
        *UP,
        *quiet(raised(0), died(0), formed(2, 1, 2), raised(1), died(1), formed(3, 2)),
        *quiet(raised(2), died(2)),
        (ENDED, "end 1"),
    ],
    "one error and two deaths while training are no common mistake": [
        *UP,
        *quiet(raised(0), *map(died, (0, 1, 2))),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "the script fails at once on the first worker that is up": [
        *quiet(joined(0), raised(0)),
        (died(0, "exit 1"), "kill"),
        *quiet(died(1), died(2)),
        (ENDED, "end 1"),
    ],
    "the script fails at once, on two workers before the third is up": [
        *quiet(joined(0), joined(1), raised(0), raised(1)),
        (died(0, "exit 1"), "kill"),
        *quiet(joined(2), raised(2), died(1, "exit 1"), died(2, "exit 1")),
        (ENDED, "end 1"),
    ],
    "an injected exception everywhere is a death like any other": [
        *UP,
        *quiet(*(raised(w, "InjectedFault", is_death=True) for w in (0, 1, 2))),
        *quiet(*map(died, (0, 1, 2))),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "a world that is lost everywhere is launched again": [
        *UP,
        *quiet(*(raised(w, "WorldLost", is_death=True) for w in (0, 1, 2))),
        *quiet(*map(died, (0, 1, 2))),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "the script does not train": [
        *quiet(joined(0), joined(1), joined(2), left(0), left(1), left(2)),
        (ENDED, "end 1"),
    ],
}

WITHOUT_SHRINKING: dict[str, Transcript] = {
    "a death ends the launch": [
        *UP,
        *quiet(saved()),
        (died(1), "kill"),
        *quiet(died(0), died(2)),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "a death after completion ends the launch, and the next one the script": [
        *UP,
        *quiet(*map(completed, (0, 1, 2))),
        (died(1), "kill"),
        *quiet(died(0), died(2)),
        (ENDED, "launch 3+4+5 at g4"),
    ],
    "a job that cannot begin is told so by the first rank alone": [
        *quiet(joined(0), joined(1), joined(2), raised(0, "UsageError")),
        (died(0, "exit 2"), "kill"),
        *quiet(died(1), died(2)),
        (ENDED, "end 1"),
    ],
}


@pytest.mark.parametrize("transcript", TRANSCRIPTS.values(), ids=TRANSCRIPTS.keys())
def test_transcript(transcript: Transcript) -> None:
    feed(machine_of(), transcript)


@pytest.mark.parametrize("transcript", WITHOUT_SHRINKING.values(), ids=WITHOUT_SHRINKING.keys())
def test_transcript_of_a_job_whose_worlds_do_not_shrink(transcript: Transcript) -> None:
    feed(machine_of(can_shrink=False), transcript)


def test_start_launches_the_first_generation() -> None:
    machine = JobMachine(JobTerms(2, 3, can_shrink=True, first_generation=8))

    (launch,) = machine.start()

    assert launch == Launch(8, (WorkerId(0), WorkerId(1)), 0, "the job begins")
    assert machine.state is JobState.LAUNCHING


def test_launch_has_no_more_workers_than_the_hosts_take() -> None:
    machine = machine_of()
    feed(machine, [*UP, *quiet(saved(), slots(2), died(0), died(1), died(2))])

    assert told(machine.handle(ENDED)) == "launch 3+4 at g4"

    machine.handle(slots(3))
    feed(machine, quiet(joined(3), joined(4), saved(3), died(3), died(4)))
    assert told(machine.handle(ENDED)) == "launch 5+6+7 at g6"


def test_launch_that_lost_a_host_before_it_was_up_costs_nothing() -> None:
    machine = JobMachine(JobTerms(4, 1, can_shrink=True, slots=4))
    machine.start()
    feed(machine, [*quiet(slots(2)), (died(0, "host b was lost"), "kill"), *quiet(died(1))])

    assert told(machine.handle(ENDED)) == "launch 4+5 at g5"

    feed(machine, [(died(4), "kill")])  # a death of its own is charged
    (end,) = machine.handle(ENDED)
    assert isinstance(end, End)


def test_job_without_a_host_is_over() -> None:
    machine = machine_of()
    feed(machine, [*UP, *quiet(saved(), slots(0), died(0), died(1), died(2, "host lost"))])

    (end,) = machine.handle(ENDED)

    assert isinstance(end, End)
    assert end.exit_code == ExitCode.RECOVERY_IMPOSSIBLE
    assert "no host is left that takes a worker" in end.reason
    assert "host lost" in end.reason


def test_budget_ends_the_job_with_a_cause_and_what_to_do() -> None:
    machine = machine_of(restarts=2)
    feed(machine, [*quiet(joined(0)), (died(0), "kill"), (ENDED, "launch 3+4+5 at g4")])

    machine.handle(raised(3, "OSError", is_death=True))
    machine.handle(died(3, "exit 1"))
    (end,) = machine.handle(ENDED)

    assert isinstance(end, End)
    assert end.exit_code == 70
    assert "budget of 2" in end.reason
    assert "worker 3: OSError: bad sample" in end.reason
    assert machine.state is JobState.OVER


_EVENTS = st.one_of(
    st.builds(joined, _WORKERS),
    st.builds(lambda g, ws: formed(g, *sorted(ws)), st.integers(1, 12), st.sets(_WORKERS)),
    st.builds(saved, _WORKERS),
    st.builds(raised, _WORKERS, st.sampled_from(["ValueError", "OSError"]), is_death=st.booleans()),
    st.builds(completed, _WORKERS, st.sampled_from(["cafe", "beef"])),
    st.builds(stopped, _WORKERS),
    st.builds(left, _WORKERS),
    st.builds(died, _WORKERS),
    st.just(ENDED),
    st.just(STOP),
)


@given(_TERMS, st.lists(_EVENTS, max_size=60))
def test_no_history_uses_a_worker_or_a_generation_twice(
    terms: JobTerms, events: list[Event]
) -> None:
    machine = JobMachine(terms)
    commands = list(machine.start())
    seen_generations: set[int] = set()
    used: set[int] = set()

    for event in events:
        is_world = isinstance(event, WorldFormed)
        if is_world and machine.state is not JobState.OVER and machine.view.concerns(event):
            seen_generations.add(event.generation)
        with_answer = _answer(machine, event)
        for launch in (command for command in with_answer if isinstance(command, Launch)):
            assert launch.generation > max(seen_generations, default=0)
            assert machine.state is JobState.LAUNCHING
        commands += with_answer

    launches = [command for command in commands if isinstance(command, Launch)]
    for launch in launches:
        assert launch.workers
        assert not used & set(launch.workers)
        used |= set(launch.workers)
    generations = [launch.generation for launch in launches]
    assert generations == sorted(set(generations))
    assert len(launches) <= terms.max_restarts + 1


@given(_TERMS, st.lists(_EVENTS, max_size=60))
def test_any_history_is_over_soon_after_a_stop(terms: JobTerms, events: list[Event]) -> None:
    """After a stop nothing is launched, and the end of the launch is the end of the job."""
    machine = JobMachine(terms)
    machine.start()
    for event in events:
        _answer(machine, event)

    if machine.state is not JobState.OVER:
        assert not any(isinstance(c, Launch) for c in machine.handle(STOP))
        (end,) = machine.handle(ENDED)
        assert isinstance(end, End)

    assert machine.state is JobState.OVER


@given(_TERMS, st.lists(_EVENTS, max_size=60))
def test_a_refused_event_leaves_no_trace_in_the_rest_of_the_history(
    terms: JobTerms, events: list[Event]
) -> None:
    machine, purged = JobMachine(terms), JobMachine(terms)
    assert machine.start() == purged.start()

    for event in events:
        try:
            answer = machine.handle(event)
        except IllegalTransition:
            continue
        assert purged.handle(event) == answer

    assert machine.view == purged.view


def _answer(machine: JobMachine, event: Event) -> tuple[Command, ...]:
    try:
        return machine.handle(event)
    except IllegalTransition:
        return ()


@pytest.mark.parametrize(
    ("limit", "progress", "spent"),
    [
        (3, [], 0),
        (3, [1, 2, 1], 3),
        (3, [1, 1, 1, 1], 4),
        (3, [0], 2),
        (3, [0, 0], 4),
        (3, [0, 1, 3], 3),
        (3, [0, 1, 300], 1),
        (0, [], 0),
        (0, [1], 1),
    ],
)
def test_relaunches_without_progress_cost_double_and_much_progress_pays_back(
    limit: int, progress: list[int], spent: int
) -> None:
    budget = RestartBudget(limit)

    for checkpoints in progress:
        budget = budget.charge(checkpoints)

    assert budget == RestartBudget(limit, spent)
    assert budget.is_spent is (spent > limit)


@pytest.mark.parametrize(
    ("before", "saves", "way_back"),
    [
        (False, [], "nothing was saved, so the run begins again at step 0"),
        (True, [], "the run resumes from its newest checkpoint"),
        (False, [saved()], "the run resumes from its newest checkpoint"),
    ],
)
@pytest.mark.parametrize("is_told", [True, False])
def test_end_tells_the_way_back_only_to_a_checkpoint_that_is_there(
    before: bool,  # noqa: FBT001
    saves: list[Event],
    way_back: str,
    is_told: bool,  # noqa: FBT001
) -> None:
    machine = JobMachine(JobTerms(2, 0, can_shrink=True, has_checkpoint=before))
    machine.start()
    for event in (*saves, *([STOP] if is_told else [])):
        machine.handle(event)

    (end,) = machine.handle(ENDED)

    assert isinstance(end, End)
    assert way_back in end.reason


def test_head_that_takes_a_launch_over_decides_like_the_one_before() -> None:
    """What it needs to know travels with each launch; the events of the launch follow."""
    first = machine_of(restarts=2)
    feed(first, UP)
    feed(first, quiet(died(0), died(1), died(2)))
    (relaunch,) = first.handle(ENDED)
    assert isinstance(relaunch, Launch)
    second = JobMachine(JobTerms(workers=3, max_restarts=2, can_shrink=True))

    second.take_over(relaunch)

    since = [
        *quiet(joined(3), joined(4), joined(5), formed(4, 3, 4, 5)),
        *quiet(died(3), died(4), died(5)),
    ]
    for machine in (first, second):
        feed(machine, since)
        (end,) = machine.handle(ENDED)
        assert isinstance(end, End)
        assert end.exit_code == 70


def test_head_that_has_begun_takes_no_launch_over() -> None:
    machine = machine_of()

    with pytest.raises(IllegalTransition):
        machine.take_over(Launch(5, (WorkerId(9),), 1, "why"))

    assert machine.view.workers == (0, 1, 2)


def test_ids_and_generations_of_a_launch_that_was_taken_over_are_never_used_again() -> None:
    machine = JobMachine(JobTerms(workers=3, max_restarts=5, can_shrink=True))
    machine.take_over(Launch(7, (WorkerId(4), WorkerId(5)), 1, "why", spent=1), prepared=3)

    (launch,) = machine.handle(ENDED)

    assert isinstance(launch, Launch)
    assert launch.workers == (9, 10)
    assert launch.generation == 12
    assert (launch.relaunch, launch.spent) == (2, 3)


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
