"""Times as people and batch systems write them, in seconds."""

from __future__ import annotations

import math
import re
from typing import Any

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_WITH_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)")
_CLOCK = re.compile(r"(?:([0-9]+)-)?(?:([0-9]+):)?([0-9]+):([0-9]+)")
_FORMS = 'give seconds (5400), a time with its unit ("90min", "2h") or hours:minutes:seconds'


def read_duration(value: Any) -> float:
    """Return the seconds of ``5400``, ``90min``, ``1:30:00`` or ``1-12:00:00``.

    Raises:
        ValueError: it is none of these.
    """
    text = "" if isinstance(value, bool) else str(value).strip().lower()
    seconds = clock_s(text)
    match = _WITH_UNIT.fullmatch(text)
    if match is not None and match[2] in _UNITS:
        seconds = float(match[1]) * _UNITS[match[2]]
    elif seconds is None:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError(f"{value!r} is not a time; {_FORMS}")
    return seconds


def clock_s(text: str) -> float | None:
    """Return the seconds of ``[days-][hours:]minutes:seconds``, None for any other text."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
