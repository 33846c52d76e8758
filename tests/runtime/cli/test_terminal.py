"""What is drawn: the live line in colours, whose words stay the same, and a bar for who waits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.runtime.cli.terminal import ByteProgress, paint
from holdfast.runtime.run.live_line import Part

PARTS = (Part("epoch 1/2", 0, "epoch"), Part(" " * 8, 9, "bar", done=0.5), Part("[w0] 3 %", 1))


def test_colours_leave_the_words_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)

    painted = paint(PARTS)

    assert "\x1b[1mepoch 1/2\x1b[0m" in painted
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == "epoch 1/2  ━━━━━━━━  [w0] 3 %"


def test_letters_that_take_two_columns_are_whole() -> None:
    assert "損失: 0.5" in paint([Part("損失: 0.5", 0)])


def test_terminal_that_wants_no_colours_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")

    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", paint(PARTS))


@pytest.mark.parametrize(
    ("seconds", "is_terminal", "is_shown"), [(5, True, True), (0.5, True, False), (5, False, False)]
)
def test_bar_is_shown_to_people_who_wait(
    seconds: float, *, is_terminal: bool, is_shown: bool, tmp_path: Path
) -> None:
    with (tmp_path / "terminal").open("w+") as file:
        console = Console(file=file, force_terminal=is_terminal)
        times = iter([0.0, seconds])
        with ByteProgress("reading", 10, console=console, clock=lambda: next(times)) as progress:
            progress(10)
        file.seek(0)

        assert ("reading" in file.read()) is is_shown
