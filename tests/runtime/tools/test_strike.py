"""Strikes and plans: a line is a strike, a plan follows from a seed, and a moment comes once."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_entries import entry

from holdfast.runtime.errors import UsageError
from holdfast.runtime.tools.strike import (
    BLOWS,
    BLOWS_ON_HOSTS,
    LASTING,
    OF_EACH_HOST,
    Agenda,
    AtStep,
    AtTime,
    Blow,
    Kind,
    OnEvent,
    Progress,
    Strike,
    Target,
    parse_blows,
    parse_plan,
    parse_strike,
    strikes_by_count,
    strikes_by_mtbf,
)

MOMENTS = st.one_of(
    st.integers(0, 10**6).map(lambda hundredths: AtTime(hundredths / 100)),
    st.integers(0, 10**6).map(AtStep),
    st.builds(OnEvent, st.sampled_from(["launch", "job_started"]), st.integers(1, 9)),
)


@st.composite
def strikes(draw: st.DrawFn) -> Strike:
    blow = draw(st.sampled_from(BLOWS_ON_HOSTS))
    lasting = draw(st.integers(1, 100)) / 4 if blow.kind in LASTING else None
    host = draw(st.sampled_from(["", "b", "user@node-1.site"]))
    host = host if blow.target in OF_EACH_HOST else ""
    return Strike(blow, draw(MOMENTS), draw(st.integers(0, 99)), lasting, host)


@given(strikes())
def test_printed_strike_is_read_again(strike: Strike) -> None:
    assert parse_strike(str(strike)) == strike


@pytest.mark.parametrize(
    ("line", "strike"),
    [
        ("kill worker #2 at 12.5s", Strike(Blow(Kind.KILL, Target.WORKER), AtTime(12.5), 2)),
        (
            "stop+cont  agent at step 40 for 3s",
            Strike(Blow(Kind.STOP_CONT, Target.AGENT), AtStep(40), 0, 3.0),
        ),
        (
            "full stderr on checkpoint 2",
            Strike(Blow(Kind.FULL, Target.STDERR), OnEvent("checkpoint", 2), 0, 3.0),
        ),
        (
            "kill agent #1 of b at step 30",
            Strike(Blow(Kind.KILL, Target.AGENT), AtStep(30), 1, host="b"),
        ),
        (
            "stop+cont host b on launch for 2s",
            Strike(Blow(Kind.STOP_CONT, Target.HOST), OnEvent("launch"), 0, 2.0, "b"),
        ),
        (
            "term client on launch",
            Strike(Blow(Kind.TERM, Target.CLIENT), OnEvent("launch")),
        ),
    ],
)
def test_line_of_a_plan_is_read(line: str, strike: Strike) -> None:
    assert parse_strike(line) == strike


@pytest.mark.parametrize(
    "line",
    [
        "",
        "kill worker",
        "kill worker at 3",
        "kill stderr at 3s",
        "full worker at 3s",
        "kill nobody at 3s",
        "maim worker at 3s",
        "kill worker at 3s for 3s",
        "kill worker on launch 0",
        "kill worker #-1 at 3s",
        "kill worker at step 3 and more",
        "kill worker of at step 3",
        "term host b at step 3",
    ],
)
def test_line_that_is_no_strike_is_refused_with_its_words(line: str) -> None:
    with pytest.raises(UsageError, match="cannot read the strike"):
        parse_strike(line)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kill wrker at 3s", "'wrker' is no target; targets: worker, guard"),
        ("maim worker at 3s", "'maim' is no kind; kinds: kill, stop"),
        ("kill worker on chekpoint 2", "no journal has an event 'chekpoint'; events: agent_killed"),
        ("full worker at 3s", "'full' and 'worker' do not go together"),
        ("kill worker at 3s for 3s", "kill cannot last; leave `for` out"),
        ("kill guard of b at 3s", "guard is on the first host; leave b out"),
        ("term host at 3s", "a host takes one of kill, stop, stop+cont, not term"),
    ],
)
def test_message_says_which_word_is_wrong_and_on_which_line(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"line 3 of the plan: .*" + re.escape(words)):
        parse_plan(f"# mine\n\n{line}\n")


@pytest.mark.parametrize("text", ["", "\n# kill worker at 3s\n"])
def test_plan_without_a_strike_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the plan has no strike"):
        parse_plan(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--kinds is empty"),
        (" , ", "--kinds is empty"),
        ("full agent", "'full' and 'agent' do not go together"),
        ("kill wrker", "give a kind, a target or both"),
        ("kill host", "the job has one host"),
        ("host", "the job has one host"),
    ],
)
def test_list_of_kinds_that_means_nothing_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_blows(text)


def test_plan_has_comments_and_empty_lines() -> None:
    plan = parse_plan("# first\n\nkill agent at 1s\n  term pool at step 2\n")

    assert [str(strike) for strike in plan] == ["kill agent at 1s", "term pool at step 2"]


def test_plan_of_the_documentation_is_one() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "chaos.md").read_text(encoding="utf-8")
    plans = re.findall(r"^```\n(kill .*?)^```", page, re.MULTILINE | re.DOTALL)

    assert [len(parse_plan(plan)) for plan in plans] == [3, 3]


@pytest.mark.parametrize(
    ("text", "count"),
    [("kill", 7), ("agent", 4), ("kill agent", 1), ("kill, kill agent", 7), ("full", 1)],
)
def test_list_of_kinds_names_kinds_targets_or_both(text: str, count: int) -> None:
    blows = parse_blows(text)

    assert len(blows) == len(set(blows)) == count


@pytest.mark.parametrize(("text", "count"), [("kill", 8), ("host", 3), ("stop host", 1)])
def test_list_of_kinds_may_name_whole_hosts_of_a_job_over_several(text: str, count: int) -> None:
    assert len(parse_blows(text, BLOWS_ON_HOSTS)) == count


BY_COUNT = [
    "stop+cont pool at step 10 for 3s",
    "stop mpiexec at step 82",
    "stop+cont worker #35 at step 67 for 3s",
    "stop+cont pool on world for 3s",
]

BY_MTBF = [
    "stop+cont pool at 1.05s for 3s",
    "stop mpiexec at 18.03s",
    "stop+cont worker #35 at 29.06s for 3s",
]


def test_seed_has_these_strikes_for_ever() -> None:
    """A bad run is replayed by its seed, in later versions too."""
    assert [str(strike) for strike in strikes_by_count(7, 4, 100, BLOWS)] == BY_COUNT
    assert [str(s) for s in islice(strikes_by_mtbf(7, 10.0, BLOWS), 3)] == BY_MTBF


def test_seed_strikes_agents_and_hosts_of_a_job_over_several() -> None:
    on_hosts = strikes_by_count(7, 400, 100, BLOWS_ON_HOSTS, has_hosts=True)
    indices = {s.index for s in on_hosts if s.blow.target is Target.AGENT}
    struck = sum(s.blow.target is Target.HOST for s in on_hosts)

    assert len(indices) > 20
    assert 20 < struck < 60  # 3 of 32 kinds
    assert tuple(map(parse_strike, map(str, on_hosts))) == on_hosts


@given(st.integers(0, 2**64), st.integers(0, 8), st.integers(0, 1000))
def test_strikes_of_a_count_lie_in_the_run(seed: int, count: int, steps: int) -> None:
    strikes = strikes_by_count(seed, count, steps, BLOWS)

    assert len(strikes) == count
    assert strikes == strikes_by_count(seed, count, steps, BLOWS)
    moments = [strike.moment for strike in strikes]
    assert all(moment.step <= steps for moment in moments if isinstance(moment, AtStep))
    assert tuple(map(parse_strike, map(str, strikes))) == strikes


def _progress(*events: str, step: int = 0) -> Progress:
    progress = Progress()
    for event in events:
        progress.saw(entry(event, 1.0))
    if step:
        progress.saw(entry("step", 1.0, step=step))
    return progress


def _due(agenda: Agenda, seconds: float, progress: Progress) -> list[str]:
    return [str(strike) for strike in agenda.due(seconds, progress)]


def test_strike_waits_for_its_time() -> None:
    agenda = Agenda(parse_plan("kill agent at 2s"))

    assert _due(agenda, 1.9, _progress()) == []
    assert _due(agenda, 2.0, _progress()) == ["kill agent at 2s"]
    assert _due(agenda, 3.0, _progress()) == []


def test_strike_waits_for_its_step_and_a_rollback_does_not_undo_it() -> None:
    agenda = Agenda(parse_plan("kill agent at step 5\nkill pool at step 4"))
    progress = _progress(step=4)

    assert _due(agenda, 0, progress) == ["kill pool at step 4"]
    progress.saw(entry("step", 2.0, step=2))
    assert _due(agenda, 0, progress) == []
    progress.saw(entry("step", 3.0, step=6))
    assert _due(agenda, 0, progress) == ["kill agent at step 5"]


def test_strike_waits_for_the_second_event() -> None:
    agenda = Agenda(parse_plan("kill agent on launch 2"))

    assert _due(agenda, 99, _progress("launch")) == []
    assert _due(agenda, 99, _progress("launch", "launch")) == ["kill agent on launch 2"]


def test_strikes_whose_moment_never_came_are_named() -> None:
    agenda = Agenda(parse_plan("kill agent at 1s\nkill pool on failure"))
    agenda.due(2.0, _progress())

    assert [str(strike) for strike in agenda.unstruck()] == ["kill pool on failure"]


def test_plan_without_end_is_taken_strike_by_strike() -> None:
    agenda = Agenda(strikes_by_mtbf(3, 10.0, BLOWS), is_endless=True)
    counts = [len(agenda.due(seconds / 10, _progress())) for seconds in range(10_000)]

    assert 60 < sum(counts) < 140
    assert set(counts) == {0, 1}


def test_strikes_at_the_same_moment_come_together_in_the_order_of_the_plan() -> None:
    plan = parse_plan("kill pool at 2s\nkill agent at step 3\nkill pool at 2s\nterm agent at 3s")
    agenda = Agenda(plan)

    assert agenda.due(2.5, _progress(step=3)) == list(plan[:3])
    assert agenda.unstruck() == list(plan[3:])
