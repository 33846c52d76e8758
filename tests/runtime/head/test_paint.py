"""The live line in colours, whose words stay the same."""

from __future__ import annotations

import re

import pytest

from holdfast.runtime.head.screen import paint
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

    assert paint(PARTS) == "epoch 1/2  ━━━━┄┄┄┄  [w0] 3 %"
