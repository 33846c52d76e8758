"""The events of a journal: what is written down, which lines count, and as which sentences."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_entries import entry, line

from holdfast.recovery.event import (
    EVENTS,
    Event,
    HostBack,
    HostLost,
    PreparationFailed,
    ScaleAsked,
    WorkerCompleted,
    WorkerExited,
    WorkerStopped,
    WorkInHand,
    WorldFormed,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.commands.goodput import goodput_of
from holdfast.runtime.commands.job_status import EventLine, job_status, told_events
from holdfast.runtime.commands.job_status import to_json as status_to_json
from holdfast.runtime.commands.summary import summarize, to_json
from holdfast.runtime.head.living_job import JobStanding
from holdfast.runtime.run import checkpoint_events as saves
from holdfast.runtime.run import events
from holdfast.runtime.run.entries import Entry, entries_of, entry_of
from holdfast.runtime.run.journal import Journal, Record, fields_of, read_journal

W0, W1 = WorkerId(0), WorkerId(1)
WORK = WorkInHand(8, 1, 2, (3, 4), is_validation=False)
ABSENT = object()

TOLD: list[tuple[Event, str]] = [
    (
        events.JobStarted(1, 0, 4, 7, 2, "/a/train.py", ("--epochs", "3"), None),
        "started train.py on 1 worker",
    ),
    (events.Incarnation("Slurm job 7"), ""),
    (
        events.TakenOver(agent=77, generation=3, workers=(0, 1)),
        "another client shows the job",
    ),
    (events.HeadFailed("OSError: no"), "the head failed: OSError: no"),
    (events.AgentKilled("it hangs"), "the agent was killed: it hangs"),
    (events.HungUp(), "SIGHUP: the job goes on without its terminal"),
    (events.SignalRepeated("SIGTERM: the job is stopping already"), ""),
    (events.Deadline("2 minutes are left", is_late=False), "2 minutes are left"),
    (events.Warned("the clock is wrong"), "the clock is wrong"),
    (events.Paused(seconds=66.0, until=74.5), "the job stood still for 66 s, and goes on"),
    (events.JobEnded(75, "stopped at step 4"), "ended with exit code 75: stopped at step 4"),
    (events.LaunchBegan(generation=1, workers=(0, 1), relaunch=0), ""),
    (
        events.Relaunch("all died", (7,), spent=1, is_renewal=False),
        "relaunched 1 worker: all died",
    ),
    (
        events.Renewing("1 of 4 is left"),
        "1 of 4 is left: stopping with a checkpoint to make room for others, which are prepared",
    ),
    (ScaleAsked(8), "the number of workers is to be 8"),
    (
        PreparationFailed(5, "worker 9 died (signal SIGKILL)"),
        "another launch could not be prepared: worker 9 died (signal SIGKILL)",
    ),
    (
        events.Balanced(40, (5, 5, 4, 2), slowest=3, times=2.04),
        "worker 3 takes 2.0 times as long as the fastest one: from step 41 on the workers compute "
        "2 times 5, 4, 2 microbatches",
    ),
    (WorldFormed(2, (W0, W1), 3, 4), ""),
    (
        events.Recovery(2, 3, (1, 4), (0,), detected=7.5, revoked_ms=1.0, next_step_ms=9.5),
        "recovered at step 3 without workers 1 and 4; worker 0 goes on",
    ),
    (events.NumericsDiffer(("threads: 1, now 2",)), ""),
    (events.InitialWeights(source="/w.h5", sha256="ab"), ""),
    (events.StepRestored(2, generation=1), "restored step 2"),
    (events.Step(9, 1, 0.5, 8, 1), ""),
    (events.Step(9, 1, 1.5, 24, 1, steps=3), ""),
    (
        events.Epoch(
            epoch=1,
            step=9,
            metrics={"loss": 0.5},
            validation=None,
            seconds=2.5,
            epochs=3,
            verbose=1,
            ledger=events.EpochLedger(72, "0f", exact=True),
            generation=1,
        ),
        "",
    ),
    (WorkerStopped(W0, 4, generation=1), "stopped at step 4 with a checkpoint"),
    (WorkerCompleted(W0, 9, "ab", None, 3, {"loss": 0.5}, {}, generation=1), "completed step 9"),
    (WorkerCompleted(W0, 9, "ab", True, 3, {}, {}, "ValueError: no"), "completed step 9"),
    (events.FaultStruck("kill", 2, 3, "vote"), ""),
    (
        events.Suspected(1, 30.0, 7, where="train.py:3", samples=WORK, limit_s=60.0),
        "worker 1 has made no progress for 30 s after step 7, in train.py:3, with microbatch 1 of "
        "step 8, and others were killed there: it is killed after 60 s",
    ),
    (
        events.Suspected(4, 300.2, 7, "f (a.py:1)", "f", None, 600.0, is_awaited=True),
        "worker 4 has made no progress for 300 s after step 7, in f (a.py:1), and all others wait "
        "for it: it is killed after 600 s",
    ),
    (
        events.Stalled("standstill", 185.0, (3, 4)),
        "all 2 workers have waited for each other inside MPI for 185.0 s: ending the launch",
    ),
    (
        WorkerExited(W1, "signal SIGKILL", step=0, stderr=("odd",), samples=WORK),
        "worker 1 died after step 0 (signal SIGKILL)",
    ),
    (WorkerExited(W1, "exit 1"), "worker 1 died (exit 1)"),
    (
        events.MemoryDiffers(5, (0, 2), has_majority=True, generation=1),
        "step 5 differs in the memory of workers 0 and 2: fenced",
    ),
    (
        HostLost("b", "its link is cut", (W0, W1)),
        "host b was lost with its workers (0, 1): its link is cut",
    ),
    (
        events.HostRefused("b", "numpy is 2.1.0 on b: install the same"),
        "host b stays out: numpy is 2.1.0 on b: install the same",
    ),
    (HostBack("b"), "host b is back, and takes workers of the next launch"),
    (saves.Checkpoint(4, 0.5, 900, generation=1), ""),
    (
        saves.CheckpointFailed(4, "disk full", generation=1),
        "the checkpoint of step 4 failed: disk full",
    ),
    (saves.CheckpointSkipped(4, generation=1), ""),
    (saves.SaveInterval(31.0, (0.5, 0.25), 2, 5786.4, generation=1), ""),
    (saves.PruneFailed("busy"), ""),
    (saves.StorageDowngrade("no fsync"), ""),
    (
        saves.StoreRemoved("/l/checkpoints", 20),
        "/l/checkpoints was removed, or its disk unmounted",
    ),
    (saves.Rejected(2, "a bit"), "rejected the checkpoint of step 2: a bit"),
    (
        saves.Unreadable(2, "Stale file handle", 180.0, path="/a", error="ESTALE", tries=7),
        "gave up the checkpoint of step 2 after 3:00: Stale file handle",
    ),
    (saves.StepCopied(4, 0.5, 900, "s3://b"), ""),
    (saves.CopiesTold("s3://b", "none just now: no"), "copies to s3://b: none just now: no"),
    (events.Pressure("disk", "the disk is full", used=9, limit=9), "the disk is full"),
    (events.PreloadFailed("odd", "no such module"), ""),
    (events.PoolRestarted("signal SIGKILL"), ""),
    (events.OutputDropped(3), ""),
    (events.JournalGap(3), ""),
]
"""Events with all their fields, each with its sentence, or nothing if people are not told of it."""


def test_table_has_every_event() -> None:
    assert {event.NAME for event, _ in TOLD} == set(EVENTS)


@pytest.mark.parametrize(("event", "sentence"), TOLD)
def test_event_is_told_in_one_sentence_or_not_at_all(event: Event, sentence: str) -> None:
    found = told_events([Entry(event, 5.0, 1e9)], 8)

    assert found == ((EventLine(1e9, sentence),) if sentence else ())


@pytest.mark.parametrize("event", [event for event, _ in TOLD])
def test_event_is_read_as_it_was_recorded(event: Event, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", run_id="r1", source="worker 3")

    journal.record(event)
    journal.close()

    (found,) = entries_of(read_journal(tmp_path / "journal.jsonl"))
    assert found.event == event
    assert found.run_id == "r1"


def test_line_lacks_a_field_that_says_nothing_but_not_one_that_may_say_so() -> None:
    told = events.StepRestored(2, generation=None), events.FaultStruck("kill", 2, 3, "vote")

    assert list(map(fields_of, told)) == [
        {"step": 2, "generation": None},
        {"kind": "kill", "worker": 2, "step": 3, "site": "vote", "attempt": 1},
    ]


@pytest.mark.parametrize("event", [event for event, _ in TOLD if event.LISTED])
def test_report_lists_an_event_whose_kind_says_so(event: Event) -> None:
    found = summarize([entry("job_started", 1.0), Entry(event, 2.0, 1e9)])

    (listed,) = json.loads(to_json(found))[event.LISTED]
    assert set(listed) == {field.name for field in dataclasses.fields(event)} - event.HIDDEN


@pytest.mark.parametrize("event", EVENTS)
def test_line_with_fields_that_nobody_asks_for_counts(event: str) -> None:
    assert entry_of(line(event, 1.5, colour="blue")) is not None


@pytest.mark.parametrize(
    ("event", "field", "sound", "odd"),
    [
        ("stopped", "event", ["stopped"], [None, 7, ["step"]]),
        ("stopped", "now", [0, -1.5], [True, "1", None, math.nan, 1e300, ABSENT]),
        ("hung_up", "time", [0], [-1.0, 1e12, "now", ABSENT]),
        ("stopped", "step", [0], [-1, True, 1.0, "1", None, [1], 1 << 64, ABSENT]),
        (
            "suspected",
            "seconds",
            [-0.5, 0],
            [True, "1", None, math.nan, math.inf, -math.inf, 1e300, 10**400, ABSENT],
        ),
        ("warning", "text", [""], [None, 7, ["odd"], ABSENT]),
        ("launch", "workers", [[]], [None, 2, "01", {"0": 1}, [0, -1], [0, True], [[0]], ABSENT]),
        ("restored", "generation", [3, None, ABSENT, "odd"], []),
    ],
)
def test_line_counts_if_each_field_that_readers_need_makes_sense(
    event: str, field: str, sound: list[object], odd: list[object]
) -> None:
    def is_sound(value: object) -> bool:
        found = line(event, 1.5) | {field: value}
        return (
            entry_of({name: each for name, each in found.items() if each is not ABSENT}) is not None
        )

    assert all(map(is_sound, sound))
    assert not any(map(is_sound, odd))


def test_lines_keep_their_order_around_one_that_is_left_out() -> None:
    first, last = line("stopped", 1.0), line("warning", 2.0)

    found = entries_of([first, line("stopped", 1.5, step="x"), last])

    assert [one.now for one in found] == [1.0, 2.0]


_VALUES = st.sampled_from([
    None, -1, 0, 7, 1.5, math.nan, 1e300, 10**400, "x", [], [1], ["x"], True, {}, {"ids": 3},
    {"samples": "x"}, {"loss": "x"}, {"ids": [1], "microbatch": 0, "count": 1}, {"loss": math.nan},
])  # fmt: skip


@st.composite
def _damaged(draw: st.DrawFn) -> list[Record]:
    """Draw events with fields that were removed, or are what they must not be."""
    lines = []
    for event in draw(st.lists(st.sampled_from([event for event, _ in TOLD]), max_size=8)):
        fields = line(event.NAME, draw(st.floats(0, 9)), **fields_of(event))
        for name in draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
            if draw(st.booleans()):
                fields.pop(name, None)
            else:
                fields[name] = draw(_VALUES)
        lines.append(json.loads(json.dumps(fields)))
    return lines


@given(_damaged())
def test_report_status_and_goodput_can_be_told_of_whatever_is_left(lines: list[Record]) -> None:
    found = entries_of(lines)

    to_json(summarize(found))
    status = job_status(found, JobStanding("running", is_over=False), None, (2.0, 2.0))
    json.dumps(status_to_json(status), allow_nan=False)
    told = goodput_of(found, now_s=2.0)

    assert (told is None) == (not found)


TWICE = [entry("restored", at, step=2) for at in (1.0, 2.0, 3.0)]


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([entry_of(line("stopped", 1.5, step="odd") | {"event": "sailed"})], ["sailed"]),
        ([entry("warning", 5.0, text="  odd\n\tweather \x0b ahead\n")], ["odd weather ahead"]),
        ([entry("warning", 5.0, text=" \n\t")], []),
        (TWICE, ["restored step 2"]),
        ([*TWICE, entry("step", 5.0, step=3), *TWICE], ["restored step 2"]),
        (
            [*TWICE, entry("stopped", 5.0, step=4), *TWICE],
            ["restored step 2", "stopped at step 4 with a checkpoint", "restored step 2"],
        ),
        (
            [entry("restored", 5.0, step=number) for number in range(9)],
            [f"restored step {number}" for number in range(6, 9)],
        ),
    ],
    ids=["unknown", "several lines", "no word", "twice", "around a step", "again", "many"],
)
def test_newest_events_have_a_line_each(entries: list[Entry[Any]], told: list[str]) -> None:
    assert [event.text for event in told_events(entries, 3)] == told


def test_event_that_is_told_twice_in_a_row_has_the_newest_time() -> None:
    assert told_events(TWICE, 8) == (EventLine(1e9 + 3.0, "restored step 2"),)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "Epoch 3/10 - 2.1 s - loss: 0.3100 - accuracy: 0.9000 - val_loss: 0.4000"),
        ({"validation": None}, "Epoch 3/10 - 2.1 s - loss: 0.3100 - accuracy: 0.9000"),
        ({"seconds": 0.021, "metrics": {}, "validation": {}}, "Epoch 3/10 - 21 ms"),
        ({"metrics": {"loss": 2e-5}, "validation": {}}, "Epoch 3/10 - 2.1 s - loss: 2.0000e-05"),
        ({"metrics": {"loss": math.nan}, "validation": {}}, "Epoch 3/10 - 2.1 s - loss: nan"),
        ({"metrics": {"a\nb": 1}, "validation": {}}, "Epoch 3/10 - 2.1 s - a b: 1.0000"),
        ({"epochs": "ten", "metrics": [0.5], "validation": {"loss": None}}, "Epoch 3 - 2.1 s"),
    ],
)  # fmt: skip
def test_line_of_an_epoch_lacks_what_makes_no_sense(change: dict[str, Any], text: str) -> None:
    metrics = {"accuracy": 0.9, "loss": 0.31}
    told = {"epoch": 3, "step": 180, "epochs": 10, "seconds": 2.13, "metrics": metrics}

    found = entry("epoch", 1.0, **(told | {"validation": {"loss": 0.4}} | change)).event

    assert found.line == text
