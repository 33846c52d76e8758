"""What a user is told of saves that fail, one after the other, for the same reason."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"[0-9]+")


class FailedSaves:
    """The failures since the last save that succeeded; a reason is told in full once."""

    def __init__(self) -> None:
        self._reason = ""

    def sentence(self, step: int, reason: str) -> str:
        """Return the line of a save that has failed."""
        # Paths in it name step and attempt.
        kind = _NUMBER.sub("0", reason)
        is_known, self._reason = kind == self._reason, kind
        if is_known:
            return f"the checkpoint of step {step} failed for the same reason"
        return f"the checkpoint of step {step} failed: {reason}"

    def succeeded(self, step: int) -> str | None:
        """Take note of a save that succeeded; return the line if one has failed before."""
        had_failed, self._reason = bool(self._reason), ""
        return f"checkpoints are saved again, from step {step} on" if had_failed else None
