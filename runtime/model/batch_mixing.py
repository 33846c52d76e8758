"""Whether a step can be computed in microbatches, found out on real samples before the first one.

A step is tried on some samples, on two parts of them, and on the first part with each sample twice.
All samples draw the same random numbers meanwhile, and nothing is changed.

* A model's own loss: P and Q are put together in four ways.  Each term of the loss tells by PP what
  it is divided by: a mean stays, a sum doubles.  Then

      gradient(PP) + gradient(QQ) = gradient(PQ) + gradient(QP)

  holds if every sample adds its own part, wherever it stands.  It does not hold if samples see each
  other, as in a contrastive loss.
* A script's step: its gradients are means or sums over samples, or it mixes them.  It updates some
  metrics with values of single samples, and others with one value of the batch.  Both are right for
  a batch, but their sums over microbatches differ.  So do numbers of the logs.
* State beside the metrics, of both: whether it is a mean, a sum, or neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.runtime.model.captured_step import OwnStep, StepLogs, record
from holdfast.runtime.model.graphs import Batch
from holdfast.runtime.model.kinds import (
    StateKind,
    Values,
    leaf_metrics,
    metric_kinds,
    norm,
    state_kinds,
)
from holdfast.runtime.model.loss import LossKinds, Term, TermKind
from holdfast.runtime.model.model_rules import computes_in_float32, unchanged
from holdfast.runtime.model.random_ops import equal_draws
from holdfast.runtime.model.replica import Microbatch

_MOST_OF_A_LOSS = 4
"""Of P and of Q: enough to see each other, few enough to cost little."""

MOST_OF_A_STEP = 16
"""A batch that mixes its samples shows it with few of them."""

_OF_A_LOSS = 2e-3, 5e-2
_OF_A_STEP = 1e-2, 2e-1
"""Tolerances in float32, and with layers that compute in 16 bits."""

_OF_A_KIND = 0.02
"""How near a term must come to a mean or to a sum."""

_OF_STATE = 0.2
"""State agrees more nearly than gradients of a step, as a part of the tolerance."""

_SCALES = (1.0, 0.1, 0.01)
"""To these scales weights are moved if the first samples have no gradient, as under a hinge."""

_TINY = 1e-12

_Changed: TypeAlias = Sequence[tuple[Any, Any]]
"""Other values of some variables."""


class BatchMixing(Enum):
    """What becomes of a model whose loss mixes the samples of a batch."""

    REFUSED = "told, and not trained"
    ACCEPTED = "trained with the loss of each microbatch"
    HARMLESS = "not looked for: a batch is one microbatch"
    ALONE = "not looked for: one worker computes whole batches, and no other one joins it"

    @property
    def keeps_batches_whole(self) -> bool:
        """Whether a batch is one microbatch."""
        return self in (BatchMixing.HARMLESS, BatchMixing.ALONE)

    @staticmethod
    def of(microbatches: int, workers: int, *, is_accepted: bool) -> BatchMixing:
        """Return what a job does about mixing; ``workers`` is how many its launch has."""
        if microbatches == 1:
            return BatchMixing.ALONE if workers == 1 else BatchMixing.HARMLESS
        return BatchMixing.ACCEPTED if is_accepted else BatchMixing.REFUSED


@dataclass(frozen=True, slots=True)
class SampleTrial:
    """What a step does with some samples; metrics are updated from zero."""

    samples: float
    metrics: Values
    """Metric variables: of a model's loss by path, of a script's step by number."""
    state: Values = field(default_factory=dict)
    """Other variables that the step assigns, by path."""
    numbers: Values = field(default_factory=dict)
    """Numbers of the logs, by name."""
    gradients: Sequence[Any] = ()
    """Those of each update of a script's step in one vector."""
    terms: tuple[Term, ...] = ()
    rest: Any = 0.0
    """What is left of a model's loss beside its terms."""


class Probe:
    """Tries a step on samples of a microbatch, and on two parts of them, once each at need.

    ``parts`` are the numbers of the samples of each.  ``run`` tries a batch, from other values of
    some variables.
    """

    def __init__(
        self,
        first: Microbatch,
        parts: tuple[list[int], list[int]],
        run: Callable[[Batch, _Changed], SampleTrial],
    ) -> None:
        one, other = parts
        self.share = len(one) / (len(one) + len(other))
        self._rows = {"one": one, "other": other, "whole": one + other, "twice": one + one}
        self._first = first
        self._run = run
        self._found: dict[str, SampleTrial] = {}

    def __getitem__(self, name: str) -> SampleTrial:
        """Return the trial of ``one`` part, the ``other``, the ``whole``, or one part ``twice``."""
        if name not in self._found:
            self._found[name] = self._run(self._batch(name), ())
        return self._found[name]

    def _batch(self, name: str) -> Batch:
        return Batch.of(self._first.rows(self._rows[name]))

    def states(self, variables: Iterable[Any], tolerance: float) -> dict[str, StateKind]:
        """Return what becomes of variables over the parts of a batch, by path."""
        if not self["one"].state:
            return {}
        return state_kinds(
            variables,
            self["whole"].state,
            ((self.share, self["one"].state), (1 - self.share, self["other"].state)),
            self["twice"].state,
            tolerance,
            lambda values: self._run(self._batch("one"), values).state,
        )


@dataclass(frozen=True, slots=True)
class _Added:
    """Two contributions, tensor by tensor; the last one is the loss and what it is divided by."""

    sums: list[npt.NDArray[np.float32]]
    norms: tuple[list[float], list[float]]
    """Of the tensors of each contribution."""
    first_loss: npt.NDArray[np.float32]
    """The last tensor of the first contribution."""


class LossProbe:
    """Tries a model's own loss; ``tried`` is its `ModelContributor`, which hears what was found."""

    def __init__(self, model: Any, tried: Any, first: Microbatch) -> None:
        self._model = model
        self._tried = tried
        self._half = max(1, min(_MOST_OF_A_LOSS, first.samples // 2))
        p = list(range(self._half))
        q = [first.samples - self._half + row for row in p]
        self._p, self._q = first.rows(p), first.rows(q)
        self._pairs = [first.rows(pair) for pair in (p + p, q + q, p + q, q + p)]
        self._calm = Probe(first, (p, q), functools.partial(self._try, training=False))
        self._keen = Probe(first, (p, q), functools.partial(self._try, training=True))
        self._seeds = tf.zeros((tried.seeds, 2), tf.int64)
        self._tolerance = _tolerance(model, _OF_A_LOSS)

    def _try(self, batch: Batch, values: _Changed, *, training: bool) -> SampleTrial:
        with equal_draws():
            found: SampleTrial = self._tried.trial(batch, values, training=training)
        return found

    @np.errstate(all="ignore")  # samples that are not finite end the first step
    def run(self) -> str | None:
        """Tell the contributor what the model's loss, metrics and state are made of.

        Returns in words how the loss mixes samples, None if it does not.
        """
        calm, keen, doubts = self._calm, self._keen, list[str]()
        kinds = {
            False: _kinds(calm["one"], calm["twice"], doubts),
            True: _kinds(keen["one"], keen["twice"], doubts),
        }
        metrics = metric_kinds(
            self._model.metrics,
            calm["one"].metrics,
            calm["twice"].metrics,
            lambda: [calm["other"].metrics, calm["whole"].metrics],
        )
        states = keen.states(self._tried.state, self._tolerance)
        self._tried.note(kinds, metrics)
        mixing = self._difference(doubts)
        self._tried.note(kinds, metrics, states)
        return mixing

    def _difference(self, doubts: Sequence[str]) -> str | None:
        """Return in words how four arrangements of the samples contradict each other."""
        pp, qq, pq, qp = self._pairs
        alike, crossed = self._added(pp, qq), self._added(pq, qp)
        scale = max((norm for norms in alike.norms for norm in norms[:-1]), default=0)
        nothing = self._tolerance / 100 * scale
        norms = zip(*alike.norms, *crossed.norms, strict=True)
        is_mixed = any(
            norm(one - other) > self._tolerance * sum(of_tensor) + nothing
            for one, other, of_tensor in zip(alike.sums, crossed.sums, norms, strict=True)
        )
        return self._told(crossed) if is_mixed else next(iter(doubts), None)

    def _told(self, crossed: _Added) -> str:
        """Return both numbers: of the batch PQ, and of its two halves as microbatches."""
        samples = 2 * self._half
        apart = self._added(self._p, self._q)
        settle = self._tried.measures.settle
        entries = (crossed.first_loss, apart.sums[-1])
        losses = [settle(of.astype(np.float64), samples)[0] / samples for of in entries]
        if abs(losses[0] - losses[1]) > self._tolerance * abs(losses[0]):
            return (
                f"{samples} samples have the loss {losses[0]:.6g} together, but {losses[1]:.6g} as "
                f"two microbatches of {self._half}"
            )
        of_tensors = (crossed.norms[0][:-1], map(norm, apart.sums[:-1]))
        norms = [float(np.sqrt(sum(size**2 for size in each))) for each in of_tensors]
        return (
            f"the gradient of {samples} samples has the norm {norms[0]:.6g} together, but "
            f"{norms[1]:.6g}, or another direction, as two microbatches of {self._half}"
        )

    def _added(self, one: Microbatch, other: Microbatch) -> _Added:
        """Add two contributions up, of which TensorFlow holds one at a time.

        TensorFlow never gives memory back that it has once taken.  One large array does.
        """
        sums = _copied(self._contribution(one))
        first, first_loss = [norm(tensor) for tensor in sums], sums[-1].copy()
        second = []
        for added, tensor in zip(sums, self._contribution(other), strict=True):
            second.append(norm(tensor))
            np.add(added, tensor, added)
        return _Added(sums, (first, second), first_loss)

    def _contribution(self, microbatch: Microbatch) -> list[npt.NDArray[np.float32]]:
        """Return the gradients, and at the end the loss and what it is divided by."""
        with equal_draws():
            tensors = self._tried.probed(Batch.of(microbatch), self._seeds)
        *gradients, metrics = [np.asarray(tensor) for tensor in tensors]
        graded = gradients[: len(self._tried.roles.graded)]
        return [*graded, self._tried.measures.loss_entries(metrics)]


def _kinds(small: SampleTrial, double: SampleTrial, doubts: list[str]) -> LossKinds:
    """Return the kinds of all terms, and add what contradicts each of them to ``doubts``."""
    kinds = [
        TermKind.RATIO if term.key is not None else _kind(term.value, other.value, doubts)
        for term, other in zip(small.terms, double.terms, strict=True)
    ]
    return LossKinds(tuple(kinds), _kind(small.rest, double.rest, doubts))


def _kind(small: Any, double: Any, doubts: list[str]) -> TermKind:
    """Tell a mean from a sum by what it becomes when each sample stands there twice."""
    one, two = (float(np.sum(np.asarray(value, np.float64))) for value in (small, double))
    limit = _OF_A_KIND * abs(one) + 1e-12
    if abs(two - one) <= limit or not np.isfinite([one, two]).all():
        return TermKind.MEAN  # what is not finite tells nothing, and ends the training at its step
    if abs(two - 2 * one) <= limit:
        return TermKind.SUM
    doubts.append(
        f"some samples have the loss {one:.6g}, and twice each of them {two:.6g}, which is neither "
        "a mean nor a sum over samples"
    )
    return TermKind.MEAN


def _copied(tensors: Sequence[npt.NDArray[np.float32]]) -> list[npt.NDArray[np.float32]]:
    """Return copies in one vector, which keeps no single tensor."""
    vector = np.empty(sum(tensor.size for tensor in tensors), np.float32)
    ends = np.cumsum([tensor.size for tensor in tensors])[:-1]
    copies = np.split(vector, ends)
    for copy, tensor in zip(copies, tensors, strict=True):
        copy[:] = tensor.reshape(-1)
    return [copy.reshape(tensor.shape) for copy, tensor in zip(copies, tensors, strict=True)]


@dataclass(frozen=True, slots=True)
class MeasuredValues:
    """How the values of a batch follow from those of its parts."""

    weighted: tuple[bool, ...]
    """For each metric variable whether it is updated with values of the whole batch.

    These are weighted by the microbatch's share of its batch, as numbers that are no sums.
    """
    odd_metrics: tuple[str, ...] = ()
    """Metrics that are neither sums nor means."""
    summed_numbers: frozenset[str] = frozenset()
    """Numbers of the logs that are sums over samples."""
    odd_numbers: tuple[str, ...] = ()
    """Numbers that are neither sums nor means, such as the norm of a gradient."""

    @staticmethod
    def of(
        metrics: Iterable[tuple[str, tuple[Any, ...]]],
        whole: SampleTrial,
        parts: tuple[SampleTrial, SampleTrial],
        tolerance: float,
    ) -> MeasuredValues:
        """Return what was found with a batch and with two parts of it.

        ``metrics`` are names and variables; the variables of one metric belong together.
        """
        one, other = parts
        share, other_share = (part.samples / whole.samples for part in parts)
        weighted: list[bool] = []
        odd_metrics: list[str] = []
        summed: list[str] = []
        odd: list[str] = []
        for name, variables in metrics:
            own = range(len(weighted), len(weighted) + len(variables))
            values = [[of.metrics[str(n)] for of in (whole, *parts)] for n in own]
            added = sum(_distance(m, m1 + m2) for m, m1, m2 in values)
            mean = sum(_distance(m, share * m1 + other_share * m2) for m, m1, m2 in values)
            weighted += [mean < added] * len(values)
            if min(mean, added) > tolerance * len(values):
                odd_metrics.append(name)
        for name, number in whole.numbers.items():
            n1, n2 = one.numbers[name], other.numbers[name]
            is_finite = all(np.isfinite(value).all() for value in (number, n1, n2))
            if is_finite and _distance(number, share * n1 + other_share * n2) > tolerance:
                is_sum = _distance(number, n1 + n2) <= tolerance
                (summed if is_sum else odd).append(name)
        return MeasuredValues(tuple(weighted), tuple(odd_metrics), frozenset(summed), tuple(odd))

    def notices(self, step: str) -> Iterator[str]:
        """Yield a line for each value that microbatches cannot measure apart."""
        for name in self.odd_metrics:
            yield (
                f"metric {name!r} of {step} is neither a sum nor a mean over samples: it shows "
                "what its microbatches add up to; --microbatches 1 keeps each batch whole"
            )
        for name in self.odd_numbers:
            yield (
                f"{name!r} in the logs of {step} is neither a mean nor a sum over samples: it "
                "shows the mean of its microbatches; --microbatches 1 keeps each batch whole"
            )


def _distance(found: Any, expected: Any) -> float:
    scale = np.abs(found).sum() + np.abs(expected).sum() + _TINY
    return float(np.abs(found - expected).sum() / scale)


@dataclass(frozen=True, slots=True)
class StepTrials:
    """What trials of a script's step have found."""

    measured: MeasuredValues
    """How metrics and numbers of the logs follow from those of the parts."""
    whole: float
    """The norm of the gradients of the batch."""
    parts: float
    """The norm of the gradients of its parts, put together."""
    difference: float
    """The norm of the difference between the two."""
    tolerance: float
    states: dict[str, StateKind] = field(default_factory=dict)
    """What becomes of state beside the metrics over the parts of a batch, by path."""
    summed: frozenset[int] = frozenset()
    """Updates whose gradients are sums over samples, not means, by their number."""

    def kind_of(self, variable: Any) -> StateKind:
        """Return what becomes of a variable over the parts of a batch."""
        return self.states.get(variable.path, StateKind.MEAN)

    def weight(self, update: int, samples: Any) -> Any:
        """Return how often gradients of some samples count: once if they are sums."""
        return 1.0 if update in self.summed else samples

    @property
    def mixes_samples(self) -> bool:
        """Whether the gradients of a batch are not those of its parts, added up."""
        return self.difference > self.tolerance * max(self.whole, self.parts)


def try_step(step: OwnStep, first: Microbatch) -> StepTrials:
    """Try a script's step on some samples of a microbatch, and on two parts of them."""
    cut, tolerance = _cut(first.samples), _tolerance(step.model, _OF_A_STEP)
    run = functools.partial(_captured, step)
    probe = Probe(first, cut, run)
    whole, parts = probe["whole"], (probe["one"], probe["other"])
    metrics = leaf_metrics(step.model.metrics)
    measured = MeasuredValues.of(metrics, whole, parts, tolerance)
    states = probe.states(step.model.variables, _OF_STATE * tolerance)
    for scale in _SCALES:
        if all(norm(gradients) > 0.0 for gradients in whole.gradients):
            break
        with _moved(step.model.trainable_variables, scale):
            again = Probe(first, cut, run)
            whole, parts = again["whole"], (again["one"], again["other"])
    together, apart, summed = list(whole.gradients), [], set()
    for i, (gradients, one, other) in enumerate(
        zip(together, *(part.gradients for part in parts), strict=True)
    ):
        mean, added = probe.share * one + (1 - probe.share) * other, one + other
        limit = tolerance * norm(gradients)
        if norm(gradients - mean) > limit >= norm(gradients - added):
            summed.add(i)
        apart.append(added if i in summed else mean)
    vector, other_vector = (np.concatenate([np.zeros(0), *each]) for each in (together, apart))
    norms = norm(vector), norm(other_vector), norm(vector - other_vector)
    return StepTrials(measured, *norms, tolerance, states, frozenset(summed))


@contextmanager
def _moved(variables: Sequence[Any], scale: float) -> Iterator[None]:
    """Move weights for a while: without a gradient nothing tells a sum from a mean."""
    random = np.random.default_rng(0)
    with unchanged(variables):
        for variable in variables:
            value = np.asarray(variable.value)
            moved = value + (0.1 + np.abs(value)) * random.normal(size=value.shape)
            variable.value.assign(tf.cast(scale * moved, variable.dtype))
        yield


def untried(step: OwnStep) -> StepTrials:
    """Return what holds for a step whose batches are never cut: nothing is weighted."""
    nothing = MeasuredValues((False,) * len(step.model.metrics_variables))
    return StepTrials(nothing, 0.0, 0.0, 0.0, _tolerance(step.model, _OF_A_STEP))


def _tolerance(model: Any, tolerances: tuple[float, float]) -> float:
    return tolerances[0] if computes_in_float32(model) else tolerances[1]


def _captured(step: OwnStep, batch: Batch, values: _Changed) -> SampleTrial:
    captured = step.capture(batch, None, record, values)
    logs = StepLogs.of(step.model, captured.logs, captured.results, step.name)
    numbers = zip(logs.numbers, logs.numbers_in(captured.logs), strict=True)
    return SampleTrial(
        float(batch.samples),
        {str(n): np.asarray(captured.added(v), np.float64) for n, v in enumerate(captured.metrics)},
        {v.path: np.asarray(captured.value(v), np.float64) for v in captured.state},
        {number.name: np.asarray(tensor, np.float64) for number, tensor in numbers},
        [_flat(call.gradients) for call, _ in captured.calls],
    )


def _flat(gradients: Sequence[Any]) -> Any:
    arrays = [np.asarray(tf.convert_to_tensor(gradient), np.float64) for gradient in gradients]
    return np.concatenate([np.zeros(0), *(array.reshape(-1) for array in arrays)])


def _cut(samples: int) -> tuple[list[int], list[int]]:
    """Return the numbers of the samples of two uneven parts; a single sample is taken twice."""
    if samples == 1:
        return [0], [0]
    some = list(range(min(samples, MOST_OF_A_STEP)))
    first = max(1, len(some) // 3)
    return some[:first], some[first:]
