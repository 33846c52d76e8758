"""Numbers, durations and memory as people read them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping

CONCLUDING = "concluding"
AFTER_TRAINING = (CONCLUDING, "leaving")
"""Phases of a worker whose trainings are complete, and whose script may still go on."""

_PHASES = {CONCLUDING: "script after training"}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float) -> str:
    """Return a metric with four decimals; a small one with four digits, as Keras shows it."""
    if not math.isfinite(value) or value == 0 or 1e-3 < abs(value) < 1e7:
        return f"{value:.4f}"
    return f"{value:.4e}"


def metrics(values: Mapping[str, float], prefix: str = "") -> list[str]:
    """Return each metric as ``name: value``, the loss first; a name stays in its line."""
    names = sorted(values, key=lambda name: name != "loss")
    return [f"{prefix}{_printable(name)}: {number(values[name])}" for name in names]


def phase(label: str) -> str:
    """Return the phase of a worker as people read it."""
    return _PHASES.get(label, label)


def columns(text: str) -> int:
    """Return the columns that ``text`` takes on a terminal (UAX 11: some letters take two)."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def rate(per_s: float) -> str:
    """Return steps per second; of slow steps the seconds that one takes."""
    if per_s < 1:
        return f"{1 / per_s:.1f} s/step"
    return f"{per_s:.1f} steps/s" if per_s < 100 else f"{per_s:.0f} steps/s"


def duration(seconds: float) -> str:
    """Return seconds as ``12 s``, ``3:05`` or ``2:10:00``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def memory(size_bytes: float) -> str:
    """Return bytes with a unit, as ``311 MiB``."""
    exponent = 0
    while size_bytes >= 1024 and exponent < len(_UNITS) - 1:
        size_bytes, exponent = size_bytes / 1024, exponent + 1
    decimals = 1 if exponent > 2 else 0
    return f"{size_bytes:.{decimals}f} {_UNITS[exponent]}"


def count(many: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{many} {noun}" if many == 1 else f"{many} {plural or noun + 's'}"


def _printable(name: str) -> str:
    """Return a name that a script has chosen without what would move the cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in name)
