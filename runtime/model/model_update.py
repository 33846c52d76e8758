"""What becomes of the sums over a batch: means for the optimizer, and new state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from holdfast.runtime.loss.loss_terms import Kind
from holdfast.runtime.loss.state_kinds import arrived
from holdfast.runtime.model.model_sums import ModelSums


class ModelUpdate:
    """Lets a model's optimizer use sums of gradients, and assigns the state that travels."""

    def __init__(self, model: Any, sums: ModelSums) -> None:
        """Look at the roles of the model's variables; the first training call has told them."""
        self._model = model
        self._sums = sums
        named = (part for part, _ in sums.roles.graded)
        # The samples come first; other parts of the loss have another denominator each.
        self.parts = tuple(dict.fromkeys([Kind.MEAN.name, *named]))
        """Names of the parts of the loss."""

    def divisors(self, samples: Any, metrics: Any) -> list[Any]:
        """Return what each part is divided by, from the samples and metrics of a batch."""
        known = {Kind.MEAN.name: samples, Kind.SUM.name: 1.0}
        entry = self._sums.measures.denominator_of
        return [known[part] if part in known else metrics[entry(part)] for part in self.parts]

    def run(self, sums: Sequence[Any], divisors: Any) -> None:
        """Update everything from the tensors before the metrics; called in a graph."""
        roles = self._sums.roles
        means: dict[int, Any] = {}
        for (part, variable), total in zip(roles.graded, sums, strict=False):
            mean = self._mean(total, divisors[self.parts.index(part)])
            known = means.get(id(variable))
            means[id(variable)] = mean if known is None else known + mean
        variables = list(roles.graded_variables)
        if variables:  # Keras calls no optimizer for a model without any
            self._model.optimizer.apply([means[id(v)] for v in variables], variables)
        for variable, total in zip(roles.moving, sums[len(roles.graded) :], strict=True):
            kind = self._sums.kind_of(variable)
            variable.assign(arrived(variable, total, divisors[0], kind))

    def _mean(self, total: Any, divisor: Any) -> Any:
        return total if self._sums.gives_means else tf.math.divide_no_nan(total, divisor)
