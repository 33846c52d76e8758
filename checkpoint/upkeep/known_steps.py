"""What the manifests of a run's steps say that a plan of retention needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.epoch_metrics import EpochMetrics
from holdfast.checkpoint.format.names import step_name
from holdfast.checkpoint.upkeep.own_steps import OwnSteps


@dataclass(frozen=True, slots=True)
class KnownStep:
    """The knowledge of a plan about a committed step.

    ``metrics`` are of the state of this very step.  None means that they could not be read:
    the step may be the best, so it stays.  ``nbytes`` is its size.
    """

    step: int
    metrics: Mapping[str, float] | None = field(default_factory=dict)
    nbytes: int = 0


class KnownSteps:
    """The steps of one run; the manifest of each is read once, and its shards never."""

    def __init__(self, steps: OwnSteps) -> None:
        self._steps = steps
        self._known: dict[int, KnownStep] = {}

    def newest_first(self, *, are_read: bool) -> tuple[KnownStep, ...]:
        """Return the steps; without reading their manifests they have no metrics and no size.

        Raises ``StorageFailed`` if the store cannot be listed.
        """
        steps = self._steps.newest_first()
        return tuple(self._read(step) if are_read else KnownStep(step) for step in steps)

    def _read(self, step: int) -> KnownStep:
        # A step that was saved again may have other bytes, but neither other metrics nor
        # a size that differs by much.
        if step not in self._known:
            store = self._steps.store
            try:
                manifest = store.scan(step).manifest_alone()
            except CheckpointError:
                directory = store.directory / step_name(step)
                return KnownStep(step, None, store.disk.size_of_tree(directory))
            found = EpochMetrics.of(manifest.cursor)
            metrics = found.values if found and found.step == step else {}
            self._known[step] = KnownStep(step, metrics, manifest.nbytes)
        return self._known[step]
