"""A victim: a process of holdfast that is killed, failed or left without power.

It prepares a folder, acts on it in a process of its own, and says a word for each thing that
it acknowledges: ``saved 30``.  Afterwards it judges what it has left there, from the words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from supervision import Say
from tally import Wrong

RUN = "run"
"""The run directory in a victim's folder."""

Intrusion = Callable[[Path, int], object]
"""Another process acts on the folder while the victim stands still; returns its memory."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What a victim has left: its folder, its words, and what is known of its end."""

    folder: Path
    seed: int
    words: tuple[str, ...]
    complain: Callable[[Wrong, str], None]
    has_lost_memory: bool = False
    """Whether the power went: then only the folder is left."""
    is_failed: bool = False
    """Whether a call has failed, other than by a kill."""
    intruder: object = None
    """What the intruder remembers, None if there was none."""

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.folder / RUN

    def steps(self, verb: str) -> set[int]:
        """Return the steps of which it has said ``verb``."""
        pairs = (word.split()[:2] for word in self.words)
        return {int(pair[1]) for pair in pairs if pair[0] == verb and len(pair) == 2}

    def has_said(self, text: str) -> bool:
        """Return whether a word of it begins so."""
        return any(word.startswith(text) for word in self.words)


class Victim(Protocol):
    """One kind of work in which holdfast may be struck."""

    @property
    def name(self) -> str:
        """Its name in tables and options."""

    @property
    def intrusions(self) -> Mapping[str, Intrusion]:
        """What others may do meanwhile, by name."""

    def prepare(self, folder: Path, seed: int) -> None:
        """Fill the folder with what the work finds there; it may be copied elsewhere."""

    def act(self, folder: Path, seed: int, say: Say) -> None:
        """Do the work, and say each thing that is done; in a process of its own."""

    def judge(self, after: Aftermath) -> None:
        """Complain of all that must not be so, whatever has struck."""
