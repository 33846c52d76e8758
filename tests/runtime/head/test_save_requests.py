"""Requests for a checkpoint now, as transcripts: what happens, and what each request hears.

``ask`` is a request, ``order`` one that does not wait, and ``gone`` the end of the newest sender.
``save 7 1-2.5`` is a checkpoint of step 7 from the one second to the other, and ``job_ended`` an
event of that name.  A worker's ``completed 7`` has ``w`` behind.  Requests come in second 2, unless
they say another one.
"""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_entries import entry

from holdfast.runtime.head.visits import Answered, SaveAsked, SaveDone, SaveRefused, SaveRequests

FAILED = "checkpoint_failed full"
_WORDS = {SaveAsked: "asked", SaveDone: "saved", SaveRefused: "unsaved"}


class Play:
    """Requests with a clock that a transcript sets, and what they have heard."""

    def __init__(self) -> None:
        self.orders, self.now = 0, 2.0
        self.heard: list[list[str]] = []
        self.requests = SaveRequests(self._ask, lambda: self.now)
        self._newest = 0

    def _ask(self) -> None:
        self.orders += 1

    def _hear(self, answers: list[str], message: Answered) -> None:
        words = [_WORDS[type(message)], *map(str, astuple(message))]
        answers.append(" ".join(filter(None, words)))

    def take(self, line: str) -> None:
        """Let one thing of a transcript happen."""
        event, *words = line.split()
        if event in ("ask", "order"):
            self.now = float(words[0]) if words else self.now
            answers: list[str] = []
            self.heard.append(answers)
            self._newest = self.requests.add(
                lambda message: self._hear(answers, message), is_waiting=event == "ask"
            )
        elif event == "gone":
            self.requests.forget(self._newest)
        elif event == "save":
            began, ended = map(float, words[1].split("-"))
            fields = {"step": int(words[0]), "seconds": ended - began, "now": ended}
            self.requests.follow(entry("checkpoint", **fields))
        else:
            step = int(words[0]) if words and words[0].isdigit() else 1
            source = "worker 0" if words[1:] == ["w"] else "head"
            reason = words[0] if words else ""
            fields = {"step": step, "reason": reason, "now": 5.0}
            self.requests.follow(replace(entry(event, **fields), source=source))


LAST = "world; save 7 0.5-1; {}; ask 3; step; job_ended"
"""A job that is asked after an older training has come to step 7."""


@pytest.mark.parametrize(
    ("transcript", "heard"),
    [
        # Any sign of training shows workers to ask; other events, and older launches, show none.
        *[(f"launch; {sign}; ask", "asked") for sign in ("world", "step", "epoch", "save 1 0-1")],
        *[
            (f"launch; {other}; ask", "")
            for other in ("restored", "warning", "failure", "checkpoint_skipped")
        ],
        ("world; job_started; ask", ""),
        ("world; launch; ask", ""),
        ("ask; launch; world", "asked"),
        ("world; job_ended; ask; launch; ask", "unsaved | "),
        ("world; order; save 7 2.5-3", "asked"),
        ("ask; gone; gone; world", ""),
        # Only a checkpoint that was begun after the request answers it.
        ("world; ask; save 5 1.75-3", "asked"),
        ("world; ask; save 5 2-3", "asked, saved 5 1.0"),
        ("world; ask; save 6 1.5-2.5; save 7 2.5-3; save 8 3-4", "asked, saved 7 1.0"),
        (
            "world; ask; ask 2.75; save 7 2.5-3; save 8 3-4",
            "asked, saved 7 1.0 | asked, saved 8 1.25",
        ),
        ("world; ask; launch; world; save 6 9.5-10", "asked, asked, saved 6 8.0"),
        # A save that fails is asked for again, but not for ever; those before count for nothing.
        (f"world; ask; {FAILED}; {FAILED}; {FAILED}", "asked, asked, asked, asked, unsaved full"),
        (f"world; {FAILED}; {FAILED}; {FAILED}; {FAILED}; ask", "asked"),
        # The end of the job answers by its last step, if that is on the disk.
        ("world; save 7 1-2; completed 7 w; job_ended; ask", "unsaved"),
        ("world; ask; save 7 1-2.5; stopped 7 w; job_ended", "asked, saved 7 3.0"),
        ("world; ask; save 7 1-2.5; stopped 8 w; job_ended", "asked, unsaved"),
        ("world; save 6 0-1; save 7 1-1.5; ask; completed 7 w; job_ended", "asked, saved 7 3.0"),
        (
            "world; save 7 0-1; stopped 7 w; job_ended; job_started; launch; world; ask 3; "
            "stopped 7 w; job_ended",
            "asked, saved 7 2.0",
        ),
        # An older training, job or launch that has ended there is not the one that was asked.
        *[
            (LAST.format(before), "asked, unsaved")
            for before in (
                "stopped 7 w; job_ended; job_started; world",
                "completed 7 w; job_ended; job_started; world",
                "completed 7 w; launch; world",
                "completed 7 w; world",
                "completed 7; completed 7 w; world; completed 7",  # by a slow head
            )
        ],
    ],
)
def test_request_hears_that_workers_were_asked_and_then_of_the_checkpoint_that_answers_it(
    transcript: str, heard: str
) -> None:
    play = Play()

    for line in transcript.split("; "):
        play.take(line)

    assert " | ".join(", ".join(answers) for answers in play.heard) == heard
    asked = sum(answers.count("asked") for answers in play.heard)
    assert play.orders == asked


_EVENTS = st.sampled_from(["world", "step", "launch", "job_started", "save"])


@given(st.lists(_EVENTS, max_size=12), st.integers(0, 12))
def test_answer_is_never_older_than_the_order(events: list[str], asked_before: int) -> None:
    """Each record is a second after the one before, and each save takes one and a half."""
    play = Play()
    play.take("world")
    asked_at = asked_before - 0.25

    for now, event in enumerate(events):
        if now == asked_before:
            play.take("world")
            play.take(f"ask {asked_at}")
        if event == "save":
            fields = {"step": now, "seconds": 1.5, "now": float(now)}
            play.requests.follow(entry("checkpoint", **fields))
        else:
            play.take(event)

    begun = [now - 1.5 for now, event in enumerate(events) if event == "save"]
    told = [answer.split() for each in play.heard for answer in each if "unsaved" not in answer]
    told = [words for words in told if words[0] == "saved"]
    assert bool(told) == (bool(play.heard) and any(moment >= asked_at for moment in begun))
    assert all(float(words[2]) >= 0.0 for words in told)
