"""What a compiled Keras model contributes, and what becomes of its total.

The model is called inside a ``keras.StatelessScope``, so the call changes nothing.  The changes
that the call wanted to make are read from the scope instead:

* gradients of the loss times the samples, so that sums over microbatches
  divided by all samples are the gradient of the mean loss (of a microbatch that is the
  whole batch: gradients of the mean loss itself);
* state that the call changes (moving statistics of BatchNormalization, counters):
  the new value times the samples, so that the mean is weighted by samples, or what is added;
* states of seed generators: set from the microbatch's seed, then forgotten;
* metric variables: updated from zero, so that they are sums.

An update divides the total by its samples, lets the optimizer apply the gradients and assigns the
moving statistics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.runtime.model import model_rules
from holdfast.runtime.model.batch_mixing import BatchMixing, LossProbe, SampleTrial
from holdfast.runtime.model.captured_step import Starts, metric_starts, scalars, start_of
from holdfast.runtime.model.graph_replica import Contributor
from holdfast.runtime.model.graphs import Batch, Divide
from holdfast.runtime.model.kinds import (
    MetricKinds,
    StateKind,
    arrived,
    check_kind,
    notices_of,
    travelling,
)
from holdfast.runtime.model.loss import (
    Gradients,
    LossKinds,
    LossParts,
    Measures,
    TermKind,
    has_dynamic_scale,
    noted_terms,
)
from holdfast.runtime.model.model_rules import model_variables, seed_states, unchanged
from holdfast.runtime.model.random_ops import draws_from, equal_draws
from holdfast.runtime.model.replica import Microbatch

_FEW = 2
"""Samples that build a model: a loss that squeezes its targets takes no single one."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The variables that a step touches, by the part that they play."""

    graded: tuple[tuple[str, Any], ...]
    """Each part of the loss with the trainable variables that it depends on."""
    moving: tuple[Any, ...]
    """State that a training call changes and that is averaged over samples."""
    metrics: tuple[Any, ...]
    """Metric variables that an update changes."""

    def paths(self) -> list[str]:
        """Return the paths, which can be compared; variables would compare by elements."""
        parts = [f"{part}:{v.path}" for part, v in self.graded]
        return parts + [v.path for v in self.moving + self.metrics]


class ModelContributor(Contributor):
    """The step of Keras; a model that is not built yet is built with samples of ``first``.

    For microbatches that are whole batches, gradients are those of the mean loss: nothing is added
    to them.  ``evaluates`` is whether the training has validation.
    """

    roles: Roles
    """The parts that variables play; known after the first training call, as ``measures``."""
    measures: Measures

    def __init__(
        self, model: Any, first: Microbatch, mixing: BatchMixing, *, evaluates: bool = True
    ) -> None:
        self._model = model
        self._mixing = mixing
        self._evaluates = evaluates
        self._few = Batch.of(first.rows(slice(_FEW)))
        self._unshown = _build(model, self._few, evaluates=evaluates)
        model_rules.check_trainable(model.trainable_variables)
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self.is_apart = self.is_undivided = mixing.keeps_batches_whole
        self._carried = carried_metrics(model, self._few, evaluates=evaluates)
        self._starts = {k: v for k, v in metric_starts(model).items() if k not in self._carried}
        self._trainable = tuple(model.trainable_variables)
        self._generators, state = seed_states(model), model.non_trainable_variables
        self.state = tuple(v for v in state if not model_rules.is_generator_state(v))
        """Variables beside weights, seeds and metrics."""
        self.seeds = len(self._generators) + 1
        self.draws = bool(self._generators)
        self.variables = model_variables(model)
        self._sparse: tuple[str, ...] = ()
        """Paths of weights whose gradients TensorFlow keeps by rows, as those of an embedding."""
        self.note({True: LossKinds(), False: LossKinds()}, MetricKinds())
        self._mixed = None if self.is_apart else LossProbe(model, self, first).run()

    def note(
        self,
        kinds: dict[bool, LossKinds],
        metrics: MetricKinds,
        states: Mapping[str, StateKind] | None = None,
    ) -> None:
        """Take what terms are in training and validation, metrics, and state if it is no mean.

        The next call finds roles and measures anew.
        """
        self._kinds, self._metric_kinds, self._state_kinds = kinds, metrics, dict(states or {})
        self._has_roles = False

    def sums(self, turn: int | None, batch: Batch, seeds: Any) -> list[Any]:
        with draws_from(seeds[-1]) as drawn:
            if turn is None:
                found = self._forward(batch, self._seeded(seeds), training=False)
                sums = [self._metric_sums(batch, *found)]
            else:
                scale = self._model.optimizer.scale_loss(tf.constant(1.0))
                sums = self._training(batch, seeds, scale, self._wanted())
        self.draws = self.draws or bool(drawn)
        return sums

    def probed(self, batch: Batch, seeds: Any) -> list[Any]:
        """Return the sums of an eager call, without a scale of the loss."""
        return self._training(batch, seeds, tf.constant(1.0), Gradients.OF_SUMS_FROM_MEANS)

    def _wanted(self) -> Gradients:
        """Return what a step's gradients are of."""
        if self.is_undivided:
            return Gradients.OF_MEANS
        is_scaled = has_dynamic_scale(self._model.optimizer)
        return Gradients.OF_SUMS_FROM_MEANS if is_scaled else Gradients.OF_SUMS

    def _training(self, batch: Batch, seeds: Any, scale: Any, wanted: Gradients) -> list[Any]:
        call, loss, shown = self._forward(batch, self._seeded(seeds), training=True)
        gradients = loss.gradients(call.weights, scale, wanted)
        self._note_roles(call, loss.names, gradients)
        self._sparse = tuple(self._trainable[i].path for i in sorted(loss.sparse))
        sums = [g for of_part in gradients for g in of_part if g is not None]
        samples = float(batch.samples)
        moving = self.roles.moving
        sums += [travelling(v, call.value(v), samples, self._kind_of(v)) for v in moving]
        return [*sums, self._metric_sums(batch, call, loss, shown)]

    def trial(
        self, batch: Batch, values: Iterable[tuple[Any, Any]], *, training: bool
    ) -> SampleTrial:
        """Return the numbers of an eager call, from other values of some variables."""
        call, loss, _ = self._forward(batch, values, training=training)
        metrics, state = (
            {v.path: np.asarray(call.value(v), np.float64) for v in some if call.has_changed(v)}
            for some in (call.metrics, self.state)
        )
        samples, terms = float(batch.samples), tuple(loss.terms)
        return SampleTrial(samples, metrics, state, terms=terms, rest=loss.rest)

    def _forward(
        self, batch: Batch, values: Iterable[tuple[Any, Any]], *, training: bool
    ) -> tuple[ModelCall, LossParts, Any]:
        """Return a call of the model, with all metrics after it, its loss, and what Keras shows."""
        model = self._model
        call = ModelCall(model, values, self._starts)
        with tf.GradientTape(persistent=True) as tape, call.scope:
            tape.watch(call.weights)
            with noted_terms(tape) as terms:
                prediction, loss = forward(
                    model, batch, training=training, evaluates=self._evaluates
                )
            total = tf.reduce_sum(loss)  # a loss without reduction has a value for each sample
            update_metrics(model, batch, prediction)
        parts = LossParts(tape, total, terms, self._kinds[training], batch.samples)
        shown = None if loss.shape.rank == 0 else tf.reduce_mean(loss)
        return call, parts, shown

    def _seeded(self, seeds: Any) -> Iterator[tuple[Any, Any]]:
        return ((v, seeds[i]) for i, v in enumerate(self._generators))

    def _note_roles(
        self, call: ModelCall, parts: Sequence[str], gradients: Sequence[Sequence[Any]]
    ) -> None:
        """Learn from the first call which variables take part; all later ones must agree."""
        known = map(id, self._trainable + self.state + self._generators + call.metrics)
        model_rules.check_strangers(len(call.scope.state_mapping.keys() - set(known)))
        moving = tuple(filter(call.has_changed, self._trainable + self.state))
        for variable in moving:
            model_rules.check_state_change(variable)
        graded = tuple(
            (part, v)
            for part, of_part in zip(parts, gradients, strict=True)
            for v, gradient in zip(self._trainable, of_part, strict=True)
            if gradient is not None
        )
        if self._trainable:
            model_rules.check_gradients(graded)
        metrics = tuple(filter(call.has_changed, call.metrics))
        roles = Roles(graded, moving, metrics)
        if self._has_roles:
            is_same = self.roles.paths() == roles.paths()
            assert is_same, "what a call changes depends on the batch's shape"
        else:
            kinds = self._metric_kinds
            by_batch, summed = (
                [n for n, v in enumerate(metrics) if v.path in paths]
                for paths in (kinds.by_batch, kinds.summed)
            )
            carried = [n for n, v in enumerate(metrics) if id(v) in self._carried]
            self.measures = Measures(metrics, by_batch, carried, summed)
        self.roles, self._has_roles = roles, True

    def _metric_sums(self, batch: Batch, call: ModelCall, loss: LossParts, shown: Any) -> Any:
        values = [call.value(v) for v in self.roles.metrics]
        return self.measures.sums(values, loss, batch.samples, shown=shown)

    def _kind_of(self, variable: Any) -> StateKind:
        return self._state_kinds.get(variable.path, StateKind.MEAN)

    def check(self) -> None:
        if self._mixing is BatchMixing.REFUSED:
            for variable in self.roles.moving:
                check_kind(variable, self._kind_of(variable), "the model's call")
            model_rules.check_unmixed(self._mixed)

    def learn(self, validated: Microbatch | None) -> None:
        self._left_out = _names_of(self._model, self._no_sums())
        self.metrics, self.only_shown = self.measures.size, self.measures.of_variables

    def _no_sums(self) -> list[Any]:
        """Return the variables that are no sums: updates add the same to every earlier value."""
        metrics = self.roles.metrics
        bases = [2 + np.arange(math.prod(v.shape)).reshape(v.shape) % 5 for v in metrics]
        from_zero = self._updated_metrics(())
        from_base = self._updated_metrics(zip(metrics, bases, strict=True))
        found = []
        for i, variable in enumerate(metrics):
            starts_at_zero = id(variable) in self._carried or not np.any(np.asarray(variable.value))
            is_sum = np.allclose(from_base[i], bases[i] + from_zero[i], rtol=1e-5, equal_nan=True)
            if not (starts_at_zero and is_sum):
                found.append(variable)
        return found

    def _updated_metrics(self, values: Iterable[tuple[Any, Any]]) -> list[npt.NDArray[np.float32]]:
        """Return the metric variables after an update that starts from ``values``."""
        call = ModelCall(self._model, values, self._starts)
        call.measure(self._few, evaluates=self._evaluates)
        return [np.asarray(tf.cast(call.value(v), tf.float32)) for v in self.roles.metrics]

    def shapes(self, turn: int) -> list[tuple[int, ...]]:
        variables = (*(v for _, v in self.roles.graded), *self.roles.moving)
        return [tuple(v.shape) for v in variables]

    def graded(self, turn: int) -> list[tuple[Any, int]]:
        return [(self._model.optimizer, len(self.roles.graded))]

    @functools.cached_property
    def _parts(self) -> tuple[str, ...]:
        """Names of the parts of the loss; the first training call has told them."""
        named = (part for part, _ in self.roles.graded)
        # The samples come first; other parts of the loss have another denominator each.
        return tuple(dict.fromkeys([TermKind.MEAN.name, *named]))

    @property
    def denominators(self) -> int:
        return len(self._parts)

    def divisors(self, samples: Any, metrics: Any) -> list[Any]:
        known = {TermKind.MEAN.name: samples, TermKind.SUM.name: 1.0}
        entry = self.measures.denominator_of
        return [known[part] if part in known else metrics[entry(part)] for part in self._parts]

    def update(self, turn: int, divisors: Any, sums: Sequence[Any], divide: Divide) -> None:
        roles = self.roles
        means: dict[int, Any] = {}
        for (part, variable), total in zip(roles.graded, sums, strict=False):
            divisor = divisors[self._parts.index(part)]
            mean = total if self.is_undivided else divide(total, divisor)
            known = means.get(id(variable))
            means[id(variable)] = mean if known is None else known + mean
        if self._trainable:  # Keras calls no optimizer for a model without any
            # As Keras does: an optimizer of the script's may have a way of its own.
            pairs = ((means.get(id(v)), v) for v in self._trainable)
            self._model.optimizer.apply_gradients(pairs)
        for variable, total in zip(roles.moving, sums[len(roles.graded) :], strict=True):
            kind = self._kind_of(variable)
            variable.assign(arrived(variable, total, divisors[0], kind))

    @property
    def notices(self) -> tuple[str, ...]:
        left_out = tuple(
            f"metric {name!r} is left out: it is no sum over samples, so the parts of a batch "
            "cannot be measured apart"
            for name in self._left_out
        )
        of_rows = model_rules.notices_of_rows(self._model.optimizer, self._sparse)
        left_out += tuple(map(model_rules.notice_of_unshown, self._unshown))
        kinds = tuple(self._metric_kinds.notices(self._left_out))
        untrained = () if self._trainable else (model_rules.NO_WEIGHTS,)
        return untrained + left_out + kinds + notices_of(self._state_kinds) + of_rows

    def results(self, sums: npt.NDArray[np.float64], samples: int) -> dict[str, float]:
        with unchanged(self._model.metrics_variables):
            loss = self.measures.assign(sums) / samples
            found = self._model.get_metrics_result()
        shown = [metric for metric in self._model.metrics if metric.name == "loss"]
        if not shown or shown[-1] is self._model._loss_tracker:  # no metric of the script's
            found["loss"] = loss
        return dict(scalars({key: found[key] for key in found if key not in self._left_out}))

    def hold(self, sums: npt.NDArray[np.float64], samples: int) -> None:
        loss, tracker = self.measures.assign(sums), self._model._loss_tracker
        tracker.total.assign(loss)
        tracker.count.assign(samples)


class ModelCall:
    """The scope of one call of the model.

    It starts from ``values``, and metrics start from ``starts``, else from zero.
    """

    def __init__(
        self, model: Any, values: Iterable[tuple[Any, Any]] = (), starts: Starts | None = None
    ) -> None:
        self._model = model
        trainable = model.trainable_variables
        self.metrics = tuple(model.metrics_variables)
        self.weights = [tf.convert_to_tensor(v.value) for v in trainable]
        mapping = [(v, start_of(v, starts or {})) for v in self.metrics]
        mapping += zip(trainable, self.weights, strict=True)
        mapping += ((v, tf.cast(value, v.dtype)) for v, value in values)
        self.scope = keras.StatelessScope(state_mapping=mapping, collect_losses=True)
        self._before = {id(v): self.value(v) for v, _ in mapping}

    def measure(self, batch: Batch, *, evaluates: bool) -> None:
        """Update the metrics with a batch of validation; all samples draw the same."""
        with equal_draws(), self.scope:
            prediction, _ = forward(self._model, batch, training=False, evaluates=evaluates)
            update_metrics(self._model, batch, prediction)

    def value(self, variable: Any) -> Any:
        """Return the value that the call gives the variable, None if it does not touch it."""
        return self.scope.get_current_value(variable)

    def has_changed(self, variable: Any) -> bool:
        """Return whether the call gives the variable a new value."""
        return self.value(variable) is not self._before.get(id(variable))


def forward(model: Any, batch: Batch, *, training: bool, evaluates: bool = True) -> tuple[Any, Any]:
    """Return prediction and loss, as ``Model.fit`` computes them.

    In a training that never ``evaluates`` a ``compute_loss`` hears of training only, as in Keras,
    also when the model is tried.
    """
    prediction = model(batch.x, **model_rules.accepted(model.call, training=training))
    # By position, as Keras does: an override may call its arguments by other names.
    loss = model.compute_loss(
        batch.x,
        batch.targets,
        prediction,
        batch.weights,
        **model_rules.accepted(model.compute_loss, training=training or not evaluates),
    )
    return prediction, tf.cast(loss, tf.float32)


def update_metrics(model: Any, batch: Batch, prediction: Any) -> Any:
    """Add a prediction to the model's metrics, as ``Model.fit`` does; return the logs."""
    return model.compute_metrics(
        x=batch.x, y=batch.targets, y_pred=prediction, sample_weight=batch.weights
    )


def carried_metrics(model: Any, batch: Batch, *, evaluates: bool = True) -> frozenset[int]:
    """Return, by identity, the metric variables that updates change and that no reset empties."""
    variables = [v for v in model.metrics_variables if v.dtype != "bool"]
    with unchanged(variables):
        model.reset_metrics()
        for variable in variables:
            variable.assign(2 * variable.value + 1)
        marks = [np.asarray(variable.value.read_value()) for variable in variables]
        model.reset_metrics()
        kept = [
            variable
            for variable, mark in zip(variables, marks, strict=True)
            # Also if what it holds is no number, which the mark is not either then.
            if np.all(np.isclose(np.asarray(variable.value), mark, 0.0, 0.0, equal_nan=True))
        ]
    if not kept:
        return frozenset()
    call = ModelCall(model)
    call.measure(batch, evaluates=evaluates)
    return frozenset(id(variable) for variable in kept if call.has_changed(variable))


def _build(model: Any, batch: Batch, *, evaluates: bool) -> tuple[str, ...]:
    """Create all variables of model, loss and metrics by one call without training.

    Returns the names of what an own ``compute_metrics`` returns beside the results of metrics.
    """
    with unchanged(model.metrics_variables):
        prediction, _ = forward(model, batch, training=False, evaluates=evaluates)
        with keras.StatelessScope():  # no reset empties some metrics
            returned = update_metrics(model, batch, prediction)
        known = model.get_metrics_result()
    return tuple(name for name in returned or () if name not in known)


def _names_of(model: Any, variables: Sequence[Any]) -> tuple[str, ...]:
    """Return the names of the metrics that depend on some variables."""
    if not variables:
        return ()
    found = []
    with unchanged(model.metrics_variables):
        for power in (1, 2):
            for i, variable in enumerate(variables):
                variable.assign(tf.cast(tf.fill(variable.shape, (i + 2) ** power), variable.dtype))
            results = model.get_metrics_result()
            found.append({name: np.asarray(value) for name, value in results.items()})
    one, other = found
    return tuple(name for name in one if not np.array_equal(one[name], other[name]))
