"""The colours of the live line, as every terminal with colours knows them (ECMA-48, SGR)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from holdfast.runtime.run.live_line import GAP, Part

_CODES = {"plain": "", "epoch": "1", "metric": "36", "phase": "33", "loss": "1;31", "quiet": "2"}
"""Of each style; 1 is bold, and 2 is dim."""
_FULL_CODE, _EMPTY_CODE = "32", "90"
_WITHOUT_CODES = ("dumb", "unknown")
"""What TERM says of a terminal that knows none."""


def paint(parts: Sequence[Part], *, is_plain: bool = False) -> str:
    """Return the parts as text, with the codes for their colours if the terminal knows them.

    Without colours, as a user may want them, a bar is full where its cells are heavy.
    """
    is_plain |= bool(os.environ.get("NO_COLOR"))
    has_codes = not is_plain and os.environ.get("TERM", "").strip().lower() not in _WITHOUT_CODES
    filled, empty = _cells("┄" if is_plain else "━")

    def coded(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if text and code and has_codes else text

    def painted(part: Part) -> str:
        if part.done is None:
            return coded(part.text, _CODES[part.style])
        full = round(part.done * len(part.text))
        left = len(part.text) - full
        return coded(filled * full, _FULL_CODE) + coded(empty * left, _EMPTY_CODE)

    return GAP.join(map(painted, parts))


def _cells(empty: str) -> tuple[str, str]:
    """Return a full and an empty cell of a bar, in letters that the terminal's encoding has."""
    try:
        f"━{empty}".encode(sys.__stderr__.encoding if sys.__stderr__ else "ascii")
    except UnicodeEncodeError:
        return "=", "."
    return "━", empty
