"""Remarks of libraries that mean nothing to a user whose job goes on.

After a death Open MPI and PMIx print lines about broken pipes and aborted schedules.  Their banners
announce the end of a job that does not end.  Only lines known from real runs are noise; any other
line is shown.  The runs had Open MPI 5.0.9, and ranks killed in collectives and in point to point,
over shared memory and TCP.
"""

from __future__ import annotations

import re

_LINE = re.compile(
    rb"^NBC_Progress: an error \d+ was found during schedule"
    rb"|^Error in NBC_Start_round\(\) \(-?\d+\)$"
    rb"|^\[warn\] Epoll (?:ADD|MOD|DEL)\(\d+\) on fd \d+ failed"
    rb"|^\[[^\]]+:\d+\] pmix_ptl_base: send_msg: write failed"
    # TensorFlow, when a process imports it
    rb"|^WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|^I0000 \d\d:\d\d:[\d.]+ +\d+ (?:port|cpu_feature_guard)\.cc:\d+\] "
    rb"|^To enable the following instructions: [A-Z0-9_ ]+, in other operations, rebuild"
)
_MARKS = (
    *(b"NBC_", b"[warn] Epoll ", b"pmix_ptl_base", b"absl::InitializeLog", b"I0000 "),
    *(b"To enable the following", b"-" * 74),
)
"""Text without any of these has no noise; this test is much faster than the patterns."""
_BANNER_EDGE = re.compile(rb"^-{74}$")
_BANNER_BEGIN = re.compile(rb"^MPI_ABORT was invoked on rank")
_FOLDED_BEGIN = re.compile(
    rb"^(?:WARNING: |ERROR: )?(?:.*\b(?:PMIx|PMIX|PRTE|PRRTE|prterun|Open MPI|MPI_INIT)\b"
    rb"|A (?:requested component|system call|system-required executable|call to) "
    rb"|No network interfaces |It looks like (?:MPI|PMIx)|Sorry!  You were supposed to get help)"
)
"""How banners of Open MPI's libraries begin that may tell something: they are shown in one line."""
_BLANK = re.compile(rb"^[\s\0]*$")
_LONGEST_BANNER_LINES = 40


class NoiseFilter:
    """Removes noise from one stream of complete lines.

    A banner stands between two rules of dashes, so a rule is kept back until
    the next line shows what it begins.  A blank line after noise belongs to it.
    A banner that is no noise becomes one line, so it is kept back until its end.
    """

    def __init__(self) -> None:
        self._rule = b""
        self._banner_lines = 0
        self._folded: list[bytes] = []
        self._after_noise = False

    def without_noise(self, lines: bytes) -> bytes:
        """Return ``lines``, each with its end, without those that are noise."""
        is_plain = not (self._rule or self._banner_lines or self._folded or self._after_noise)
        if is_plain and not any(mark in lines for mark in _MARKS):
            return lines
        return b"".join(self._sift(line) for line in lines.splitlines(keepends=True))

    def rest(self) -> bytes:
        """Return what was kept back; call it when the stream has ended."""
        rest = self._rule + b"".join(self._folded)
        self._rule, self._folded = b"", []
        return rest

    def _sift(self, line: bytes) -> bytes:
        if self._banner_lines:
            self._swallow(line)
            return b""
        if self._folded:
            return self._fold(line)
        if self._rule and _BANNER_BEGIN.match(line):
            self._rule = b""
            self._banner_lines = 1
            return b""
        if self._rule and _FOLDED_BEGIN.match(line):
            self._folded, self._rule = [self._rule, line], b""
            return b""
        return self.rest() + self._sift_plain(line)

    def _swallow(self, line: bytes) -> None:
        self._banner_lines += 1
        if _BANNER_EDGE.match(line) or self._banner_lines > _LONGEST_BANNER_LINES:
            self._banner_lines = 0
            self._after_noise = True

    def _fold(self, line: bytes) -> bytes:
        self._folded.append(line)
        if not _BANNER_EDGE.match(line):
            return self.rest() if len(self._folded) > _LONGEST_BANNER_LINES else b""
        words = b" ".join(b"".join(self._folded[1:-1]).split())
        self._folded = []
        self._after_noise = True
        return words + b"\n"

    def _sift_plain(self, line: bytes) -> bytes:
        if _LINE.match(line):
            self._after_noise = True
            return b""
        if self._after_noise and _BLANK.match(line):
            return b""
        self._after_noise = False
        if _BANNER_EDGE.match(line):
            self._rule = line
            return b""
        return line


def without_rules(words: str) -> str:
    """Return what a launcher has said, without the rules around its banners and empty lines."""
    return "\n".join(line for line in words.splitlines() if set(line.strip()) - {"-"})
