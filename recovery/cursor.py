"""The position of a job: its committed transactions, and the sums of the current epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from holdfast.recovery.ledger import Ledger

Sums = npt.NDArray[np.float64]

MOST_TURNS = 1024
"""An update takes fewer turns."""


@dataclass(frozen=True, slots=True, eq=False)
class Cursor:
    """Committed transactions, and the ledger and metric sums of the current epoch.

    The sums are added in double precision, in the order of the steps. So they have the
    same bits on every worker and in every run.
    """

    step: int
    evaluations: int
    ledger: Ledger
    sums: Sums
    turn: int = 0
    """Transactions of the update in hand that are committed: an update may take several turns."""
    is_cut: bool = False
    """Whether the epoch in hand has ended before its last update, because a companion wants so.

    It is not kept: the companion knows it.
    """

    @staticmethod
    def start(metrics: int, step: int = 0) -> Cursor:
        """Return the cursor of a job that begins at ``step``, with room for ``metrics`` sums."""
        return Cursor(step, 0, Ledger(), np.zeros(metrics, np.float64))

    @property
    def version(self) -> int:
        """Grows with each committed transaction: the larger one has the newer state."""
        return (self.step + self.evaluations) * MOST_TURNS + self.turn

    def after_step(self, samples: int, fingerprint: int, sums: Sums) -> Cursor:
        """Return the cursor after one more update of the model."""
        ledger = self.ledger.record(samples, fingerprint)
        return Cursor(self.step + 1, self.evaluations, ledger, self.sums + sums)

    def after_turn(self, turn: int, sums: Sums) -> Cursor:
        """Return the cursor within an update, after a turn that is not its last."""
        return replace(self, turn=turn, sums=self.sums + sums)

    def after_evaluation(self) -> Cursor:
        """Return the cursor after one more pass over the validation data."""
        return replace(self, evaluations=self.evaluations + 1)

    def after_cut(self) -> Cursor:
        """Return the cursor when the epoch in hand has ended after its last update."""
        return replace(self, is_cut=True)

    def at_epoch_start(self) -> Cursor:
        """Return the cursor with an empty ledger and empty sums."""
        return Cursor(self.step, self.evaluations, Ledger(), np.zeros_like(self.sums))

    def tensors(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the cursor as named arrays, for checkpoints and broadcasts.

        The turn is not among them, because the replica's state has it.
        """
        return {
            "cursor/evaluations": np.array(self.evaluations, np.int64),
            "cursor/ledger": np.array([self.ledger.samples, self.ledger.fingerprint], np.uint64),
            "cursor/step": np.array(self.step, np.int64),
            "cursor/sums": self.sums.copy(),
        }

    @staticmethod
    def from_tensors(tensors: Mapping[str, npt.NDArray[np.generic]]) -> Cursor:
        """Return the cursor that the method ``tensors`` has made into arrays."""
        samples, fingerprint = (int(value) for value in tensors["cursor/ledger"])
        return Cursor(
            int(tensors["cursor/step"]),
            int(tensors["cursor/evaluations"]),
            Ledger(samples, fingerprint),
            np.array(tensors["cursor/sums"], np.float64),
        )
