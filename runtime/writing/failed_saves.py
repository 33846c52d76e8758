"""What a user is told of saves that fail, one after the other, for the same reason."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[0-9]+")


class FailedSaves:
    """The failures since the last save that succeeded; a reason is told in full once.

    A failure of the run directory lasts until that takes a save: the local directory may take
    all others meanwhile.
    """

    def __init__(self) -> None:
        self._reason = ""
        self._is_of_run = False

    def sentence(self, step: int, reason: str, *, is_of_run: bool) -> str:
        """Return the line of a save that has failed; ``is_of_run``: in the run directory."""
        self._is_of_run |= is_of_run
        # Paths in it name step and attempt.
        kind = _NUMBER.sub("0", reason)
        is_known, self._reason = kind == self._reason, kind
        if is_known:
            return f"the checkpoint of step {step} failed for the same reason"
        return f"the checkpoint of step {step} failed: {reason}"

    def succeeded(self, step: int, *, is_in_run: bool) -> str | None:
        """Take note of a save that succeeded; return the line if it ends failures."""
        if self._is_of_run and not is_in_run:
            return None
        had_failed, self._reason, self._is_of_run = bool(self._reason), "", False
        return f"checkpoints are saved again, from step {step} on" if had_failed else None
