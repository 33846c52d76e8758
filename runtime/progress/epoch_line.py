"""The end of an epoch: the message that tells it, and the line that people read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.runtime.progress import words
from holdfast.runtime.progress.step_report import LIVE, is_metrics


@dataclass(frozen=True, slots=True)
class EndedEpoch:
    """An epoch that has ended at ``step``; ``epochs`` is None where nobody has told it."""

    epoch: int
    step: int
    epochs: int | None = None
    seconds: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    verbose: int = LIVE

    @staticmethod
    def of(fields: Mapping[str, Any]) -> EndedEpoch | None:
        """Return the epoch of a message or a journal's record, None if it tells of none."""
        epoch, step = fields.get("epoch"), fields.get("step")
        if not isinstance(epoch, int) or not isinstance(step, int):
            return None
        metrics, validation = fields.get("metrics"), fields.get("validation")
        seconds, epochs = fields.get("seconds"), fields.get("epochs")
        verbose = fields.get("verbose")
        return EndedEpoch(
            epoch,
            step,
            epochs if isinstance(epochs, int) else None,
            seconds if isinstance(seconds, (int, float)) else None,
            metrics if is_metrics(metrics) else {},
            validation if is_metrics(validation) else {},
            verbose if isinstance(verbose, int) else LIVE,
        )

    @property
    def line(self) -> str:
        """The line that a log gets: ``Epoch 3/10 - 2.1 s - loss: 0.3100 - val_loss: 0.4000``."""
        of_all = "" if self.epochs is None else f"/{self.epochs}"
        parts = [f"Epoch {self.epoch}{of_all}"]
        if self.seconds is not None:
            parts.append(f"{self.seconds:.1f} s")
        parts += words.metrics(self.metrics)
        parts += words.metrics(self.validation, prefix="val_")
        return " - ".join(parts)
