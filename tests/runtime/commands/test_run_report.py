"""The sentences of a report: each says what happened, where, and what came of it."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.commands.living_job import Life
from holdfast.runtime.commands.run_report import (
    EpochReport,
    Report,
    describe_checkpoints,
    describe_evidence,
    describe_failure,
    describe_journal,
    describe_ledger,
    describe_lost_lines,
    describe_ms,
    describe_time,
    describe_troubles,
    finite,
    to_json,
)
from holdfast.runtime.commands.summary import summarize
from holdfast.runtime.run.checkpoint_events import (
    Checkpoint,
    CheckpointFailed,
    Rejected,
)
from holdfast.runtime.run.events import Failure, Pressure

NOTHING = summarize([])


def report_of(**facts: Any) -> Report:
    return dataclasses.replace(NOTHING, **facts)


def epoch(number: int, *, exact: bool) -> EpochReport:
    return EpochReport(number, step=10 * number, samples=8, exact=exact)


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (Failure(2, "signal SIGKILL"), "worker 2: signal SIGKILL"),
        (Failure(2, "exit 1", step=0), "worker 2: exit 1 after step 0"),
        (Failure(2, "exit 1", phase="saving"), "worker 2: exit 1 while saving"),
        (Failure(2, "silent for 1 s", fenced=True), "worker 2: silent for 1 s, fenced"),
        (Failure(2, "fenced after 9 s", fenced=True), "worker 2: fenced after 9 s"),
        (
            Failure(2, "fenced after 9 s", fenced=True, limit="stall"),
            "worker 2: fenced after 9 s (stall limit)",
        ),
        (
            Failure(2, "silent for 1 s", 7, "training", fenced=True, limit="heartbeat"),
            "worker 2: silent for 1 s after step 7 while training, fenced (heartbeat limit)",
        ),
        (
            Failure(2, "host b was lost: the connection has ended", 7, limit="host"),
            "worker 2: host b was lost: the connection has ended after step 7",
        ),
    ],
    ids=[
        "cause",
        "before any step",
        "phase",
        "fenced",
        "fenced by its cause",
        "limit",
        "everything",
        "host",
    ],
)
def test_death_is_told_with_all_that_is_known(failure: Failure, sentence: str) -> None:
    assert describe_failure(failure) == sentence


@pytest.mark.parametrize(
    ("job", "after_s", "words"),
    [(2, 4.04, "job 2, 4.0 s"), (1, 0.0, "job 1, 0.0 s"), (None, 4.0, "-"), (1, None, "-")],
)
def test_time_of_a_death_is_that_in_its_job(
    job: int | None, after_s: float | None, words: str
) -> None:
    assert describe_time(Failure(0, "exit 1", job=job, after_s=after_s)) == words


def test_evidence_begins_with_the_samples_and_ends_with_stderr() -> None:
    samples = {"step": 8, "microbatch": 1, "count": 2, "ids": [5, 17], "is_validation": False}
    failure = Failure(
        0,
        "exit 1",
        samples=samples,
        traceback="Traceback:\n  train.py",
        stacks="main thread:\n  fit",
        stderr=("odd", "odder"),
    )

    lines = describe_evidence(failure)

    assert lines == [
        "computing",
        "  microbatch 1, samples 5, 17",
        "  Traceback:",
        "    train.py",
        "stacks",
        "main thread:",
        "  fit",
        "last lines of stderr",
        "  odd",
        "  odder",
    ]


def test_death_without_evidence_has_no_headings() -> None:
    assert describe_evidence(Failure(0, "signal SIGKILL", step=3)) == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (0, "whole"),
        (1, "1 line was lost, because stdout or stderr took nothing"),
        (2, "2 lines were lost, because stdout or stderr took nothing"),
    ],
)
def test_lost_output_is_counted_in_words(lines: int, words: str) -> None:
    assert describe_lost_lines(report_of(lost_lines=lines)) == words


@pytest.mark.parametrize(("milliseconds", "words"), [(None, "-"), (0.0, "0 ms"), (5117.3, "5.1 s")])
def test_recovery_that_never_ended_has_no_duration(milliseconds: float | None, words: str) -> None:
    assert describe_ms(milliseconds) == words


def test_ledger_names_each_epoch_that_is_not_exact() -> None:
    exact, wrong, worse = (epoch(1, exact=True), epoch(2, exact=False), epoch(4, exact=False))

    assert describe_ledger(NOTHING) == "none has ended"
    assert describe_ledger(report_of(epochs=(exact,))) == "every sample exactly once"
    assert describe_ledger(report_of(epochs=(wrong, exact, worse))) == "not exact: 2, 4"


def test_counts_of_checkpoints_leave_out_rare_ones_that_never_happened() -> None:
    committed = (Checkpoint(1, 0.1, 10, 1), Checkpoint(2, 0.1, 10, 1))

    assert describe_checkpoints(NOTHING) == "0 committed, 0 failed, 0 rejected"
    assert describe_checkpoints(report_of(checkpoints=committed, skipped_checkpoints=1)) == (
        "2 committed, 0 failed, 0 rejected, 1 skipped"
    )


@pytest.mark.parametrize(
    ("facts", "life", "words"),
    [
        ({"jobs": 1}, Life.RUNNING, "whole"),
        ({"jobs": 1}, Life.GONE, "whole"),
        ({"jobs": 1, "exit_code": 0}, Life.ENDED, "whole"),
        ({}, Life.ENDED, "whole"),
        ({"jobs": 1}, Life.ENDED, "lacks the end of the last job; so the numbers"),
        ({"lost_events": 1}, Life.RUNNING, "lacks 1 event that could not be written; so"),
        (
            {"jobs": 1, "lost_events": 3},
            Life.ENDED,
            "lacks 3 events that could not be written, and the end of the last job; so",
        ),
    ],
)
def test_journal_is_called_whole_only_if_nothing_is_known_to_lack(
    facts: dict[str, Any], life: Life, words: str
) -> None:
    assert describe_journal(report_of(**facts), life).startswith(words)


def test_only_the_last_failed_checkpoint_is_told_and_each_rejected_one() -> None:
    report = report_of(
        failed_checkpoints=(CheckpointFailed(3, "disk full"), CheckpointFailed(4, "disk gone")),
        rejected_checkpoints=(Rejected(1, "a bit"), Rejected(2, "a block")),
        pressures=(Pressure("open files", "980 of 1024 in use"),),
    )

    assert describe_troubles(report) == [
        "the checkpoint of step 4 failed: disk gone (the last of 2 that failed)",
        "rejected the checkpoint of step 1: a bit",
        "rejected the checkpoint of step 2: a block",
        "980 of 1024 in use",
    ]


def test_json_has_each_field_of_the_report() -> None:
    content = json.loads(to_json(report_of(epochs=(epoch(1, exact=True),))))

    assert set(content) == {field.name for field in dataclasses.fields(Report)}
    assert content["epochs"][0]["exact"] is True


_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.floats())
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(_VALUES)
def test_any_value_becomes_strict_json(value: object) -> None:
    once = finite(value)

    json.dumps(once, allow_nan=False)
    assert finite(once) == once


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_number_that_json_lacks_is_null_and_its_neighbours_stay(number: float) -> None:
    assert finite({"a": (number, 1.5, True), "b": [{"c": number}]}) == {
        "a": [None, 1.5, True],
        "b": [{"c": None}],
    }
