"""What a user sees of a training: the live line, the lines of epochs, and when there are none."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.head.screen import ProgressLog, Screen, live_columns, paint, say
from holdfast.runtime.host.output import Streams
from holdfast.runtime.run.events import Epoch, PoolWarmed
from holdfast.runtime.run.live_line import Part
from holdfast.runtime.run.progress import LIVE, LaunchReport, StepReport

BOUND_S = 90.0

REPORT = StepReport(
    now=1.0, step=7, steps=60, epoch=1, epochs=6, step_of_epoch=7, steps_per_epoch=10,
    metrics={"loss": 0.5},
)  # fmt: skip


class Terminal:
    """A screen that keeps what it is given."""

    def __init__(self) -> None:
        self.columns = 100
        self.is_plain = False
        self.lines: list[str] = []
        self.live: list[str] = []

    def print(self, line: str) -> None:
        self.lines.append(line)

    def draw(self, live_line: str) -> None:
        self.live.append(live_line)


def log_on(terminal: Terminal, **options: Any) -> ProgressLog:
    def words(parts: list[Part], *, is_plain: bool) -> str:
        return " | ".join(part.text for part in parts if part.done is None)

    log = ProgressLog(terminal, paint=words, clock=lambda: 2.0, **options)  # type: ignore[arg-type]
    log.launching(2)
    return log


def progress_of(phase: str = "training", **changes: Any) -> LaunchReport:
    return LaunchReport(replace(REPORT, **changes), 2, phase)


def epoch(number: int, verbose: int | None = None) -> Epoch:
    return Epoch(number, 10 * number, {"loss": 0.25}, None, None, epochs=6, verbose=verbose)


def test_job_that_was_asked_to_stop_is_stopping_whatever_its_workers_do() -> None:
    terminal = Terminal()
    log = log_on(terminal)
    log.show(progress_of())

    log.stopping()
    for phase in ("training", "saving", "concluding", "leaving"):
        log.show(progress_of(phase=phase))

    line = f"epoch 1/6 |  7/10 | {'stopping':<24} | loss: 0.5000  | 2 workers"
    assert terminal.live[1:] == [line] * 4


def test_cause_of_a_slow_start_is_named_until_the_pool_is_warm() -> None:
    terminal = Terminal()
    log = log_on(terminal, imports="TensorFlow")

    log.show(LaunchReport())
    log.show_event(PoolWarmed())
    log.show(LaunchReport())

    assert terminal.live == ["importing TensorFlow | 0 of 2 workers", "starting | 0 of 2 workers"]


def test_live_line_follows_the_training_and_goes_at_the_end() -> None:
    terminal = Terminal()
    log = log_on(terminal)

    log.show(progress_of())
    log.show(progress_of(step=8, step_of_epoch=8))
    log.end()
    log.show(progress_of())

    line = f"epoch 1/6 | {{}}/10 | {' ' * 12} | {' ' * 10} | loss: 0.5000  | 2 workers"
    assert terminal.live == [
        line.format(" 7"),
        line.format(" 8"),
        "",
    ]


def test_line_shows_the_epoch_that_was_printed_and_never_an_earlier_one() -> None:
    terminal = Terminal()
    log = log_on(terminal)

    log.show(progress_of())
    log.show_event(epoch(2))
    log.show(progress_of(step=9, step_of_epoch=9))
    shown = [line[:18] for line in terminal.live]
    log.show(progress_of(step=21, epoch=3, step_of_epoch=1))

    assert shown == ["epoch 1/6 |  7/10 ", *["epoch 2/6 | 10/10 "] * 2]
    assert terminal.live[-1].startswith("epoch 3/6 |  1/10 ")
    log.launching(2)  # which goes on from an earlier step
    log.show(progress_of())
    assert terminal.live[-1].startswith("epoch 1/6 |  7/10 ")


def test_epoch_is_told_once_however_often_it_is_trained() -> None:
    terminal = Terminal()
    log = log_on(terminal)

    for number in (1, 2, 2, 1, 2, 3):
        log.show_event(epoch(number))

    assert terminal.lines == [f"Epoch {number}/6 - loss: 0.2500" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("verbose", "options", "lines", "live"),
    [
        (0, {}, 0, 0),
        (1, {}, 1, 2),
        (2, {}, 1, 0),
        (1, {"is_quiet": True}, 0, 0),
        (1, {"columns": 0}, 1, 0),
    ],
    ids=["silent", "live", "lines", "quiet", "file"],
)
def test_verbose_and_quiet_decide_what_is_shown(
    verbose: int, options: dict[str, Any], lines: int, live: int
) -> None:
    options = dict(options)
    terminal = Terminal()
    terminal.columns = options.pop("columns", terminal.columns)
    log = log_on(terminal, **options)

    log.show(progress_of(verbose=verbose))
    log.show_event(epoch(1, verbose=verbose))

    assert (len(terminal.lines), len(terminal.live)) == (lines, live)


@pytest.mark.parametrize("columns", [0, 100], ids=["no terminal", "silent training"])
def test_live_line_goes_while_it_is_not_wanted(columns: int) -> None:
    terminal = Terminal()
    log = log_on(terminal)

    log.show(progress_of())
    terminal.columns = columns
    log.show(progress_of(verbose=0 if columns else LIVE))
    assert terminal.live[-1] == ""
    terminal.columns = 100
    log.show(progress_of())

    assert terminal.live[0] == terminal.live[-1]


@pytest.mark.parametrize(
    ("phase", "is_after"),
    [("training", False), ("concluding", True), ("leaving", True), (None, False)],
)
def test_script_after_its_training_is_told_apart(phase: str | None, *, is_after: bool) -> None:
    terminal = Terminal()
    log = log_on(terminal)

    log.show(progress_of(phase))

    assert log.is_after_training == is_after
    assert ("script after training" in terminal.live[-1]) == (phase == "concluding")


@pytest.fixture
def streams() -> Iterator[list[int]]:
    """Give stdout and stderr of this process back at the end."""
    kept = [os.dup(number) for number in (1, 2)]
    yield kept
    for number, descriptor in enumerate(kept, start=1):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _streams_on(out: Path, err: Path) -> Streams:
    for number, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    return Streams()


def test_lines_of_training_go_to_stdout_and_those_about_the_job_to_stderr(
    streams: list[int], tmp_path: Path
) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    opened = _streams_on(out, err)
    screen = Screen(opened)

    screen.say(b"holdfast: starting\n")
    screen.print("Epoch 1/2 \udcff")
    opened.close(BOUND_S)

    assert out.read_text() == "Epoch 1/2 ?\n"
    assert err.read_text() == "holdfast: starting\n"
    assert opened.dropped == 0


def test_lines_for_one_file_keep_their_order(streams: list[int], tmp_path: Path) -> None:
    opened = _streams_on(tmp_path / "both", tmp_path / "both")
    screen = Screen(opened)

    for number in range(50):
        screen.print(f"epoch {number}")
        screen.say(b"holdfast: %d\n" % number)
    opened.close(BOUND_S)

    lines = (tmp_path / "both").read_text().splitlines()
    assert lines == [f"{who}{n}" for n in range(50) for who in ("epoch ", "holdfast: ")]


def test_lines_that_a_full_disk_does_not_take_are_counted_for_both_streams(
    streams: list[int],
) -> None:
    opened = _streams_on(Path("/dev/full"), Path("/dev/null"))
    screen = Screen(opened)

    screen.print("lost")
    screen.say(b"taken\n")
    opened.close(BOUND_S)

    assert opened.dropped == 1


def test_lines_after_another_client_go_to_its_streams(streams: list[int], tmp_path: Path) -> None:
    opened = _streams_on(tmp_path / "first", tmp_path / "first")
    screen = Screen(opened)
    screen.say(b"before\n")
    opened.close(BOUND_S)

    for number in (1, 2):
        descriptor = os.open(tmp_path / "second", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    opened.redirect()
    screen.say(b"after\n")
    opened.close(BOUND_S)

    assert (tmp_path / "first").read_text() == "before\n"
    assert (tmp_path / "second").read_text() == "after\n"


def test_file_is_no_place_for_a_live_line(streams: list[int], tmp_path: Path) -> None:
    _streams_on(tmp_path / "out", tmp_path / "err").close(BOUND_S)

    assert live_columns() == 0


@pytest.mark.parametrize(
    ("kind", "is_ours", "columns"),
    [("xterm", True, 99), ("dumb", True, 0), ("xterm", False, 0)],
    ids=["terminal", "dumb terminal", "in the background"],
)
def test_live_line_needs_a_terminal_that_is_ours(
    streams: list[int], monkeypatch: pytest.MonkeyPatch, kind: str, columns: int, *, is_ours: bool
) -> None:
    controller, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp() + (not is_ours))
    os.dup2(terminal, 2)

    assert live_columns() == columns

    os.close(terminal)
    os.close(controller)


def test_line_beside_a_job_is_one_line_whatever_it_holds(
    streams: list[int], tmp_path: Path
) -> None:
    _streams_on(tmp_path / "out", tmp_path / "err").close(BOUND_S)

    say("the disk\n  is slow \udcff")

    assert (tmp_path / "err").read_text() == "holdfast: the disk is slow ?\n"


PARTS = (Part("epoch 1/2", 0, "epoch"), Part(" " * 8, 9, "bar", done=0.5), Part("[w0] 3 %", 1))


def test_colours_leave_the_words_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    painted = paint(PARTS)

    assert "\x1b[1mepoch 1/2\x1b[0m" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == "epoch 1/2  ━━━━━━━━  [w0] 3 %"


def test_terminal_that_wants_no_colours_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")

    assert paint(PARTS) == "epoch 1/2  ━━━━┄┄┄┄  [w0] 3 %"
    monkeypatch.delenv("NO_COLOR")
    assert paint(PARTS, is_plain=True) == "epoch 1/2  ━━━━┄┄┄┄  [w0] 3 %"  # as its client says
