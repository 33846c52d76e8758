"""A strike is a line of a plan, and a line is a strike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.errors import UsageError
from holdfast.runtime.tools.strike import (
    BLOWS,
    DEFAULT_BLOWS,
    LASTING,
    AtStep,
    AtTime,
    Blow,
    Kind,
    OnEvent,
    Strike,
    Target,
    parse_blows,
    parse_plan,
    parse_strike,
)

MOMENTS = st.one_of(
    st.integers(0, 10**6).map(lambda hundredths: AtTime(hundredths / 100)),
    st.integers(0, 10**6).map(AtStep),
    st.builds(OnEvent, st.sampled_from(["launch", "job_started"]), st.integers(1, 9)),
)


@st.composite
def strikes(draw: st.DrawFn) -> Strike:
    blow = draw(st.sampled_from(BLOWS))
    lasting = draw(st.integers(1, 100)) / 4 if blow.kind in LASTING else None
    return Strike(blow, draw(MOMENTS), draw(st.integers(0, 99)), lasting)


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
            "term supervisor on launch",
            Strike(Blow(Kind.TERM, Target.SUPERVISOR), OnEvent("launch")),
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
    (plan,) = re.findall(r"^```\n(kill .*?)^```", page, re.MULTILINE | re.DOTALL)

    assert len(parse_plan(plan)) == 3


@pytest.mark.parametrize(
    ("text", "count"),
    [("kill", 7), ("agent", 4), ("kill agent", 1), ("kill, kill agent", 7), ("full", 3)],
)
def test_list_of_kinds_names_kinds_targets_or_both(text: str, count: int) -> None:
    blows = parse_blows(text)

    assert len(blows) == len(set(blows)) == count


@pytest.mark.parametrize("text", ["maim", "kill stderr", "kill agent pool"])
def test_unknown_kind_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the kind"):
        parse_blows(text)


def test_defaults_need_no_mounts() -> None:
    assert {blow.target for blow in BLOWS} - {blow.target for blow in DEFAULT_BLOWS} == {
        Target.DISK,
        Target.SHM,
    }
