"""The incarnations of a run in a batch system: what each began with, and whether it went on.

A chain is one submission: a job with all its requeues, or all jobs with one
``HOLDFAST_CHAIN``.  A small file in the run directory remembers its incarnations.
So a chain ends by itself after two incarnations in a row that have saved nothing new.

The file helps, and is never needed: without it, or when it cannot be read, a chain has
just begun.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

from holdfast.runtime.errors import JobError
from holdfast.runtime.run.files import read_at_most, write_whole
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.codec import from_plain, to_plain

FILE_NAME = "incarnations.json"
_MOST_WITHOUT_PROGRESS = 2
"""One may be the victim of its node; what stops two would stop the next."""

_LARGEST_BYTES = 1 << 20
_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class ChainedStart:
    """One start of a run in a batch system, and the newest step that was saved before it."""

    label: str
    step: int


@dataclass(frozen=True, slots=True)
class Chain:
    """What a run directory remembers of the newest chain."""

    name: str
    run_id: str
    incarnations: tuple[ChainedStart, ...] = ()

    def with_next(self, incarnation: ChainedStart) -> Chain:
        """Return the chain after one more start."""
        kept = (*self.incarnations, incarnation)[-_REMEMBERED:]
        return dataclasses.replace(self, incarnations=kept)

    def idle(self, step: int) -> tuple[ChainedStart, ...]:
        """Return the newest incarnations that have all ended with the ``step`` they began with."""
        found: list[ChainedStart] = []
        for incarnation in reversed(self.incarnations):
            if incarnation.step < step:
                break
            found.append(incarnation)
        return tuple(reversed(found))

    def objection(self, step: int, variable: str | None = None) -> str | None:
        """Return why another incarnation would be in vain, None if it may help.

        ``variable`` is the one that holds the chain's name, None if the batch system names it.
        """
        idle = self.idle(step)
        if len(idle) < _MOST_WITHOUT_PROGRESS:
            return None
        labels = " and ".join(incarnation.label for incarnation in idle[-_MOST_WITHOUT_PROGRESS:])
        renamed = "" if variable is None else f" with a new {variable} (it was {self.name})"
        return (
            f"{labels} began at step {step} and have saved no later one, so this chain of jobs "
            "stops. Their output tells why they ended. Remove the cause or give more time, "
            f"then submit again{renamed}"
        )


class ChainFile:
    """The file of a chain in a run directory; only the owner of the lease writes it."""

    def __init__(self, directory: RunDirectory, name: str) -> None:
        self._directory = directory
        self.path = directory.path / FILE_NAME
        self._name = name

    def read(self) -> Chain | None:
        """Return what is remembered of this chain and this run, None if nothing is."""
        try:
            fields = json.loads(read_at_most(self.path, _LARGEST_BYTES))
            chain = from_plain(Chain, fields, allows_more=True)
            record = self._directory.load_record()
        except (OSError, ValueError, RecursionError, JobError):
            return None  # the job can do without
        is_ours = record is not None and (chain.name, chain.run_id) == (self._name, record.run_id)
        return chain if is_ours else None

    def write(self, chain: Chain) -> OSError | None:
        """Remember a chain; return what kept the disk from taking it, which stops nothing here."""
        try:
            write_whole(self.path, json.dumps(to_plain(chain), indent=1).encode(), is_durable=True)
        except OSError as error:
            return error
        return None

    def newest_step(self) -> int:
        """Return the newest step that the run has on the disk, 0 if it has none.

        Raises:
            RunUnreadable: that cannot be told just now.
        """
        return (self._directory.newest_step or 0) if self._directory.has_checkpoints else 0
