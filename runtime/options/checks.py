"""Checks of single options; each raises ValueError with the rest of a sentence."""

from __future__ import annotations

import contextlib
import math

from holdfast.checkpoint.upkeep.space import Space
from holdfast.recovery.errors import RecoveryError
from holdfast.recovery.fault import FaultPlan, parse_fault
from holdfast.recovery.schedule import EverySeconds, EverySteps, parse_schedule
from holdfast.runtime.options.rate_scale import RULES


def check_timeout(seconds: float) -> None:
    """Refuse what is no positive number of seconds."""
    if not (seconds > 0 and math.isfinite(seconds)):
        raise ValueError(f"must be a positive number of seconds, got {seconds}")


def check_wait(seconds: float) -> None:
    """Refuse what is no time to wait."""
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ValueError(f"must be a time of 0 s or more, got {seconds}")


def check_scrubs(seconds: float) -> None:
    """Refuse what is no time between readings."""
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ValueError(f"must be a number of seconds, or 0 or never for none, got {seconds}")


def check_schedule(text: str) -> None:
    """Refuse a text that is no schedule of checkpoints."""
    try:
        parse_schedule(text)
    except RecoveryError as error:
        raise ValueError(str(error)) from error


def check_drain(text: str) -> None:
    """Refuse a text that is neither a number of saves nor a time."""
    with contextlib.suppress(RecoveryError):
        if isinstance(parse_schedule(text), (EverySteps, EverySeconds)):
            return
    raise ValueError(f"must be a number of saves (4), at least 1, or a time (10min), got {text!r}")


def check_memory(text: str) -> None:
    """Refuse a text that is no number of bytes."""
    with contextlib.suppress(ValueError):
        if Space.parse(text).share is None:
            return
    raise ValueError(f"must be a number of bytes, such as 8GiB, got {text!r}")


def check_space(text: str) -> None:
    """Refuse a text that is no space for checkpoints."""
    Space.parse(text)


def check_rule(rule: str) -> None:
    """Refuse an unknown rule for learning rates."""
    if rule not in RULES:
        raise ValueError(f"must be {' or '.join(RULES)}, got {rule!r}")


def check_faults(texts: tuple[str, ...]) -> None:
    """Refuse addresses of faults that do not parse."""
    try:
        FaultPlan(tuple(parse_fault(text) for text in texts))
    except RecoveryError as error:
        raise ValueError(str(error)) from error
