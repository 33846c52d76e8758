"""The colours of the live line."""

from __future__ import annotations

import io
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

    rich knows the terminal by TERM, COLORTERM and NO_COLOR.  It only makes text here: nothing is
    written, so a terminal that takes nothing keeps nobody waiting.
    """
    columns = sum(progress.columns(part.text) + len(GAP) for part in parts) + 1
    console = Console(file=io.StringIO(), force_terminal=True, width=columns, highlight=False)
    with console.capture() as written:
        console.print(Text(GAP).join(map(_text_of, parts)), end="", no_wrap=True)
    return written.get()


def _text_of(part: Part) -> Text:
    if part.done is None:
        return Text(part.text, style=_STYLES[part.style])
    full = round(part.done * len(part.text))
    filled, empty = _cells()
    bar = Text(filled * full, style=_FULL_STYLE)
    return bar.append(empty * (len(part.text) - full), style=_EMPTY_STYLE)


def _cells() -> tuple[str, str]:
    """Return a full and an empty cell of a bar, in letters that the terminal's encoding has."""
    try:
        "━".encode(sys.__stderr__.encoding if sys.__stderr__ else "ascii")
    except UnicodeEncodeError:
        return "=", "."
    return "━", "━"
