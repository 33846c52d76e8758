"""One incarnation of a run in a batch system: whether it starts, and what it leaves for the next.

A batch system starts the same command again and again.  It must come to an end by itself:
when the run is complete, and when it does not get on.
"""

from __future__ import annotations

import dataclasses
import os

from holdfast.runtime.batch.allocation import Allocation
from holdfast.runtime.batch.finding import CHAIN
from holdfast.runtime.batch.incarnations import Chain, ChainFile, Incarnation, identity_of
from holdfast.runtime.errors import RecoveryImpossible, UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import RunDirectory


class ChainLink:
    """This start of a run, among those of its chain."""

    def __init__(self, options: JobOptions, allocation: Allocation) -> None:
        self._allocation = allocation
        self._file = ChainFile(RunDirectory(options.run_dir), allocation.chain)
        self._program = identity_of(options.script, options.argv)
        self._before = self._file.read()
        self._begins_afresh = options.fresh and self._before is None
        self._chain: Chain | None = None

    @property
    def is_complete(self) -> bool:
        """Whether an earlier link has come to the end of the same program."""
        return self._before is not None and self._before.complete == self._program != ""

    def asked(self, options: JobOptions) -> JobOptions:
        """Return the options of this link: only the first one begins a fresh run."""
        if options.fresh and self._before is not None:
            return dataclasses.replace(options, fresh=False)
        return options

    def begin(self, run_id: str) -> str:
        """Remember this start, and return it in words; the caller holds the lease.

        Raises:
            RecoveryImpossible: the chain does not get on.
            RunUnreadable: whether it does cannot be told just now.
            UsageError: the next job would not know that this one began a fresh run.
        """
        step = self._file.newest_step()
        chain = self._before or Chain(self._allocation.chain, run_id)
        objection = chain.objection(step, CHAIN if os.environ.get(CHAIN) else None)
        if objection is not None:
            raise RecoveryImpossible(objection)
        number = max(len(chain.incarnations), self._allocation.restarts) + 1
        label = f"{self._allocation.label}, incarnation {number}"
        self._chain = chain.with_next(Incarnation(label, step))
        failure = self._file.write(self._chain)
        if failure is not None and self._begins_afresh:
            raise UsageError(
                f"the first job of a chain with --fresh must be remembered in {self._file.path}, "
                f"else each job begins anew: {failure}; make it writable, or leave --fresh out"
            )
        return f"{label}, from step {step}"

    def completed(self) -> None:
        """Remember that the program has come to its end: later links have nothing to do."""
        if self._chain is not None:
            self._file.write(dataclasses.replace(self._chain, complete=self._program))
