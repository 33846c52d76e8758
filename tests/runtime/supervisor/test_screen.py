"""What a user sees of a training: the live line, the lines of epochs, and when there are none."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.run.live_line import Part
from holdfast.runtime.run.progress import StepReport
from holdfast.runtime.supervisor.screen import ProgressLog, Screen, say
from holdfast.runtime.system.codec import to_plain

REPORT = StepReport(
    now=1.0, step=7, steps=60, epoch=1, epochs=6, step_of_epoch=7, steps_per_epoch=10,
    metrics={"loss": 0.5},
)  # fmt: skip


class Terminal:
    """A screen that keeps what it is given."""

    def __init__(self) -> None:
        self.can_draw = True
        self.columns = 100
        self.lines: list[str] = []
        self.live: list[str] = []

    def print(self, line: str) -> None:
        self.lines.append(line)

    def draw(self, live_line: str) -> None:
        self.live.append(live_line)


def log_on(terminal: Terminal, **options: Any) -> ProgressLog:
    def paint(parts: list[Part]) -> str:
        return " | ".join(part.text for part in parts if part.done is None)

    log = ProgressLog(terminal, options.pop("paint", paint), clock=lambda: 2.0, **options)  # type: ignore[arg-type]
    log.launching(2)
    return log


def pong(**changes: Any) -> dict[str, Any]:
    progress = to_plain(REPORT) | changes
    return {"kind": "pong", "progress": progress, "workers": 2, "phase": "training"}


def epoch(number: int, **changes: Any) -> dict[str, Any]:
    fields = {"epoch": number, "step": 10 * number, "epochs": 6, "metrics": {"loss": 0.25}}
    report = {"kind": "epoch", **fields, **changes}
    return {"kind": "worker_report", "worker": 0, "report": report}


def test_live_line_follows_the_training_and_goes_at_the_end() -> None:
    terminal = Terminal()
    log = log_on(terminal)

    assert log.draws  # others must know it before the first one is drawn
    log.heard(pong())
    log.heard(pong(step=8, step_of_epoch=8))
    assert log.draws
    log.end()
    log.heard(pong())

    assert terminal.live == [
        "epoch 1/6 | 7/10 | loss: 0.5000 | 2 workers",
        "epoch 1/6 | 8/10 | loss: 0.5000 | 2 workers",
        "",
    ]
    assert not log.draws


def test_epoch_is_told_once_however_often_it_is_trained() -> None:
    terminal = Terminal()
    log = log_on(terminal)

    for number in (1, 2, 2, 1, 2, 3):
        log.heard(epoch(number))

    assert terminal.lines == [f"Epoch {number}/6 - loss: 0.2500" for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("verbose", "options", "lines", "live"),
    [
        (0, {}, 0, 0),
        (1, {}, 1, 1),
        (2, {}, 1, 0),
        (1, {"is_quiet": True}, 0, 0),
        (1, {"paint": None}, 1, 0),
    ],
    ids=["silent", "live", "lines", "quiet", "file"],
)
def test_verbose_and_quiet_decide_what_is_shown(
    verbose: int, options: dict[str, Any], lines: int, live: int
) -> None:
    terminal = Terminal()
    log = log_on(terminal, **options)

    log.heard(pong(verbose=verbose))
    log.heard(epoch(1, verbose=verbose))

    assert (len(terminal.lines), len(terminal.live)) == (lines, live)


def test_job_in_the_background_of_a_shell_draws_nothing_until_it_is_back() -> None:
    terminal = Terminal()
    log = log_on(terminal)

    log.heard(pong())
    terminal.can_draw = False
    log.heard(pong())
    assert terminal.live[-1] == ""
    assert not log.draws
    terminal.can_draw = True
    log.heard(pong())

    assert terminal.live[0] == terminal.live[-1]


def test_silent_training_removes_the_live_line_of_the_one_before() -> None:
    terminal = Terminal()
    log = log_on(terminal)

    log.heard(pong())
    log.heard(pong(verbose=0))

    assert terminal.live[-1] == ""


@pytest.mark.parametrize(
    ("phase", "is_after"),
    [("training", False), ("concluding", True), ("leaving", True), (None, False)],
)
def test_script_after_its_training_is_told_apart(phase: str | None, *, is_after: bool) -> None:
    terminal = Terminal()
    log = log_on(terminal)

    log.heard(pong() | {"phase": phase})

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


def _screen_on(out: Path, err: Path) -> Screen:
    for number, path in ((1, out), (2, err)):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    return Screen(may_draw=True)


def test_lines_of_training_go_to_stdout_and_those_about_the_job_to_stderr(
    streams: list[int], tmp_path: Path
) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    screen = _screen_on(out, err)

    screen.say(b"holdfast: starting\n")
    screen.print("Epoch 1/2 \udcff")
    screen.close()

    assert out.read_text() == "Epoch 1/2 ?\n"
    assert err.read_text() == "holdfast: starting\n"
    assert screen.dropped == 0


def test_lines_for_one_file_keep_their_order(streams: list[int], tmp_path: Path) -> None:
    screen = _screen_on(tmp_path / "both", tmp_path / "both")

    for number in range(50):
        screen.print(f"epoch {number}")
        screen.say(b"holdfast: %d\n" % number)
    screen.close()

    lines = (tmp_path / "both").read_text().splitlines()
    assert lines == [f"{who}{n}" for n in range(50) for who in ("epoch ", "holdfast: ")]


def test_lines_that_a_full_disk_does_not_take_are_counted_for_both_streams(
    streams: list[int],
) -> None:
    screen = _screen_on(Path("/dev/full"), Path("/dev/null"))

    screen.print("lost")
    screen.say(b"taken\n")
    screen.close()

    assert screen.dropped == 1


def test_file_is_no_place_for_a_live_line(streams: list[int], tmp_path: Path) -> None:
    screen = _screen_on(tmp_path / "out", tmp_path / "err")

    assert (screen.can_draw, screen.columns) == (False, 79)
    screen.close()


@pytest.mark.parametrize(
    ("kind", "facts", "can_draw"),
    [
        ("xterm", {"wanted", "ours"}, True),
        ("dumb", {"wanted", "ours"}, False),
        ("xterm", {"ours"}, False),
        ("xterm", {"wanted"}, False),
    ],
    ids=["terminal", "dumb terminal", "nobody wants one", "in the background"],
)
def test_live_line_needs_a_terminal_that_is_ours(
    streams: list[int],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    facts: set[str],
    *,
    can_draw: bool,
) -> None:
    controller, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(os, "tcgetpgrp", lambda fd: os.getpgrp() + ("ours" not in facts))
    os.dup2(terminal, 2)

    screen = Screen(may_draw="wanted" in facts)

    assert (screen.can_draw, screen.columns) == (can_draw, 99)
    screen.close()
    os.close(terminal)
    os.close(controller)


def test_line_beside_a_job_is_one_line_whatever_it_holds(
    streams: list[int], tmp_path: Path
) -> None:
    _screen_on(tmp_path / "out", tmp_path / "err").close()

    say("the disk\n  is slow \udcff")

    assert (tmp_path / "err").read_text() == "holdfast: the disk is slow ?\n"
