"""The colours of the live line."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from holdfast.runtime.run import progress
from holdfast.runtime.run.live_line import GAP, Part

_STYLES = {
    "plain": "",
    "epoch": "bold",
    "metric": "cyan",
    "phase": "yellow",
    "loss": "bold red",
    "quiet": "dim",
}
_FULL_STYLE, _EMPTY_STYLE = "green", "bright_black"


def paint(parts: Sequence[Part]) -> str:
    """Return the parts as text with the escape codes that this terminal knows.

    rich knows the terminal by TERM and COLORTERM.  It only makes text here: nothing is
    written, so a terminal that takes nothing keeps nobody waiting.
    """
    if os.environ.get("NO_COLOR"):
        return plain(parts)
    columns = sum(progress.columns(part.text) + len(GAP) for part in parts) + 1
    console = Console(file=io.StringIO(), force_terminal=True, width=columns, highlight=False)
    with console.capture() as written:
        console.print(Text(GAP).join(map(_text_of, parts)), end="", no_wrap=True)
    return written.get()


def plain(parts: Sequence[Part]) -> str:
    """Return the parts as text without any code; a bar is full where its cells are heavy."""
    return GAP.join(map(_plain_of, parts))


def _plain_of(part: Part) -> str:
    if part.done is None:
        return part.text
    full = round(part.done * len(part.text))
    filled, empty = _cells("┄")
    return filled * full + empty * (len(part.text) - full)


def _text_of(part: Part) -> Text:
    if part.done is None:
        return Text(part.text, style=_STYLES[part.style])
    full = round(part.done * len(part.text))
    filled, empty = _cells("━")
    bar = Text(filled * full, style=_FULL_STYLE)
    return bar.append(empty * (len(part.text) - full), style=_EMPTY_STYLE)


def _cells(empty: str) -> tuple[str, str]:
    """Return a full and an empty cell of a bar, in letters that the terminal's encoding has."""
    try:
        f"━{empty}".encode(sys.__stderr__.encoding if sys.__stderr__ else "ascii")
    except UnicodeEncodeError:
        return "=", "."
    return "━", empty
