"""What one call of a Keras model adds to a contribution, and what becomes of the sums over a batch.

The functions are traced into graphs, and run eagerly when the model is probed.  The sums become
means for the optimizer, and new state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.runtime.model import model_rules
from holdfast.runtime.model.kinds import MetricKinds, StateKind, arrived, travelling
from holdfast.runtime.model.loss import (
    Gradients,
    Kind,
    LossKinds,
    LossParts,
    LossScale,
    Term,
    noted_terms,
)
from holdfast.runtime.model.measures import Measures
from holdfast.runtime.model.model_call import (
    Batch,
    ModelCall,
    forward,
    metric_starts,
    update_metrics,
)


@dataclass(frozen=True, slots=True)
class Roles:
    """The variables that a step touches, by the part that they play."""

    graded: tuple[tuple[str, Any], ...]
    """Each part of the loss with the trainable variables that it depends on."""
    moving: tuple[Any, ...]
    """State that a training call changes and that is averaged over samples."""
    metrics: tuple[Any, ...]
    """Metric variables that an update changes."""

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the tensors before the metrics."""
        return [tuple(v.shape) for v in (*(v for _, v in self.graded), *self.moving)]

    def paths(self) -> list[str]:
        """Return the paths, which can be compared; variables would compare by elements."""
        parts = [f"{part}:{v.path}" for part, v in self.graded]
        return parts + [v.path for v in self.moving + self.metrics]


@dataclass(frozen=True, slots=True)
class _Forward:
    """A call of the model, its loss, and all metrics after it."""

    call: ModelCall
    loss: LossParts
    shown: Any
    terms: Sequence[Term]


@dataclass(frozen=True, slots=True)
class TermValues:
    """The numbers of one eager call."""

    terms: tuple[Term, ...]
    rest: Any
    """What is left of the loss beside the terms."""
    metrics: dict[str, npt.NDArray[np.float64]]
    """Metric variables by path, updated from zero."""
    state: dict[str, npt.NDArray[np.float64]]
    """Other state that the call changes, by path."""


class ModelSums:
    """The sums of gradients, moving statistics and metrics that a model makes of a microbatch.

    With ``gives_means`` the gradients are those of the mean loss: for microbatches that are
    whole batches, so nothing is added to them.
    """

    def __init__(
        self,
        model: Any,
        scale: LossScale,
        *,
        gives_means: bool = False,
        carried: frozenset[int] = frozenset(),
        evaluates: bool = True,
    ) -> None:
        self._model = model
        self._scale = scale
        self.gives_means = gives_means
        self.evaluates = evaluates
        self.trainable = tuple(model.trainable_variables)
        state = tuple(model.non_trainable_variables)
        self.seeds = tuple(v for v in state if model_rules.is_generator_state(v))
        self.state = tuple(v for v in state if not model_rules.is_generator_state(v))
        self.kinds = {True: LossKinds(), False: LossKinds()}
        """What the terms of the loss are divided by, in training and in validation."""
        self.carried = carried
        """Metric variables that no reset empties, by identity."""
        found = metric_starts(model)
        self.starts = {key: value for key, value in found.items() if key not in carried}
        """What metric variables begin with, if it is not zero."""
        self.metric_kinds = MetricKinds()
        """Which metrics hold values of whole batches."""
        self.state_kinds: dict[str, StateKind] = {}
        """What becomes of state over the parts of a batch, by path; the mean if it is not told."""
        self.sparse: tuple[str, ...] = ()
        """Paths of weights whose gradients TensorFlow keeps by rows, as those of an embedding."""
        self._roles: Roles | None = None
        self._measures: Measures | None = None

    @property
    def model_metrics(self) -> tuple[Any, ...]:
        """The model's metrics; some hold others."""
        return tuple(self._model.metrics)

    def kind_of(self, variable: Any) -> StateKind:
        """Return what becomes of a variable over the parts of a batch."""
        return self.state_kinds.get(variable.path, StateKind.MEAN)

    @property
    def roles(self) -> Roles:
        """The parts that variables play; known after the first training call."""
        assert self._roles is not None, "the first training call tells them"
        return self._roles

    @property
    def measures(self) -> Measures:
        """The layout of the metrics; known after the first training call."""
        assert self._measures is not None, "the first training call tells it"
        return self._measures

    def learn(
        self,
        kinds: dict[bool, LossKinds],
        metrics: MetricKinds,
        states: Mapping[str, StateKind] | None = None,
    ) -> None:
        """Take what is known of terms, metrics and state.

        The next training call finds roles and metrics anew.
        """
        self.kinds, self.metric_kinds, self.state_kinds = kinds, metrics, dict(states or {})
        self._roles = self._measures = None

    def training(self, batch: Batch, seeds: Any) -> list[Any]:
        """Return the tensors of a contribution: gradients, moving statistics, metrics."""
        factor = self._scale.factor()
        return self._training(batch, seeds, factor, self._wanted())

    def probed(self, batch: Batch, seeds: Any) -> list[Any]:
        """Return the same without a scale of the loss."""
        return self._training(batch, seeds, tf.constant(1.0), Gradients.OF_SUMS_FROM_MEANS)

    def _wanted(self) -> Gradients:
        """Return what a step's gradients are of."""
        if self.gives_means:
            return Gradients.OF_MEANS
        return Gradients.OF_SUMS_FROM_MEANS if self._scale.is_dynamic else Gradients.OF_SUMS

    def _training(self, batch: Batch, seeds: Any, scale: Any, wanted: Gradients) -> list[Any]:
        found = self._forward(batch, self._seeded(seeds), training=True)
        call = found.call
        gradients = found.loss.gradients(call.weights, scale, wanted)
        self._note_roles(call, found.loss.names, gradients)
        self.sparse = tuple(self.trainable[i].path for i in sorted(found.loss.sparse))
        sums = [g for of_part in gradients for g in of_part if g is not None]
        samples = float(batch.samples)
        moving = self.roles.moving
        sums += [travelling(v, call.value(v), samples, self.kind_of(v)) for v in moving]
        return [*sums, self._metric_sums(found, batch)]

    def validation(self, batch: Batch, seeds: Any) -> list[Any]:
        """Return the tensor of a validation batch: metrics only."""
        found = self._forward(batch, self._seeded(seeds), training=False)
        return [self._metric_sums(found, batch)]

    def values(
        self, batch: Batch, values: Iterable[tuple[Any, Any]], *, training: bool
    ) -> TermValues:
        """Return the terms of the loss, metrics and state, from other values of some variables.

        Only for eager calls.
        """
        found = self._forward(batch, values, training=training)
        call = found.call
        changed = [v for v in call.metrics if call.has_changed(v)]
        metrics = {v.path: np.asarray(call.value(v), np.float64) for v in changed}
        state = {v.path: np.asarray(call.value(v), np.float64) for v in self.changed_state(call)}
        return TermValues(tuple(found.terms), found.loss.rest, metrics, state)

    def changed_state(self, call: ModelCall) -> tuple[Any, ...]:
        """Return the variables beside weights, seeds and metrics that a call changes."""
        return tuple(filter(call.has_changed, self.state))

    def _forward(
        self, batch: Batch, values: Iterable[tuple[Any, Any]], *, training: bool
    ) -> _Forward:
        model = self._model
        call = ModelCall(model, values, self.starts)
        with tf.GradientTape(persistent=True) as tape, call.scope:
            tape.watch(call.weights)
            with noted_terms(tape) as terms:
                prediction, loss = forward(
                    model, batch, training=training, evaluates=self.evaluates
                )
            total = tf.reduce_sum(loss)  # a loss without reduction has a value for each sample
            update_metrics(model, batch, prediction)
        parts = LossParts(tape, total, terms, self.kinds[training], batch.samples)
        shown = None if loss.shape.rank == 0 else tf.reduce_mean(loss)
        return _Forward(call, parts, shown, terms)

    def _seeded(self, seeds: Any) -> Iterator[tuple[Any, Any]]:
        return ((v, seeds[i]) for i, v in enumerate(self.seeds))

    def _note_roles(
        self, call: ModelCall, parts: Sequence[str], gradients: Sequence[Sequence[Any]]
    ) -> None:
        """Learn from the first call which variables take part; all later ones must agree."""
        known = {id(v) for v in self.trainable + self.state + self.seeds + call.metrics}
        model_rules.check_strangers(len(call.scope.state_mapping.keys() - known))
        moving = tuple(filter(call.has_changed, self.trainable + self.state))
        for variable in moving:
            model_rules.check_state_change(variable)
        graded = tuple(
            (part, v)
            for part, of_part in zip(parts, gradients, strict=True)
            for v, gradient in zip(self.trainable, of_part, strict=True)
            if gradient is not None
        )
        if self.trainable:
            model_rules.check_gradients(graded)
        metrics = tuple(filter(call.has_changed, call.metrics))
        roles = Roles(graded, moving, metrics)
        first = self._roles or roles
        assert first.paths() == roles.paths(), "what a call changes depends on the batch's shape"
        if self._measures is None:
            kinds = self.metric_kinds
            by_batch, summed = (
                [n for n, v in enumerate(metrics) if v.path in paths]
                for paths in (kinds.by_batch, kinds.summed)
            )
            carried = [n for n, v in enumerate(metrics) if id(v) in self.carried]
            self._measures = Measures(metrics, by_batch, carried, summed)
        self._roles = roles

    def _metric_sums(self, found: _Forward, batch: Batch) -> Any:
        values = [found.call.value(v) for v in self.roles.metrics]
        return self.measures.sums(values, found.loss, batch.samples, shown=found.shown)


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

    def run(self, divisors: Any, *sums: Any) -> None:
        """Update everything from the tensors before the metrics; called in a graph."""
        roles = self._sums.roles
        means: dict[int, Any] = {}
        for (part, variable), total in zip(roles.graded, sums, strict=False):
            mean = self._mean(total, divisors[self.parts.index(part)])
            known = means.get(id(variable))
            means[id(variable)] = mean if known is None else known + mean
        if self._sums.trainable:  # Keras calls no optimizer for a model without any
            # As Keras does: an optimizer of the script's may have a way of its own.
            pairs = ((means.get(id(v)), v) for v in self._sums.trainable)
            self._model.optimizer.apply_gradients(pairs)
        for variable, total in zip(roles.moving, sums[len(roles.graded) :], strict=True):
            kind = self._sums.kind_of(variable)
            variable.assign(arrived(variable, total, divisors[0], kind))

    def _mean(self, total: Any, divisor: Any) -> Any:
        return total if self._sums.gives_means else tf.math.divide_no_nan(total, divisor)
