"""Whether a model's loss can be computed in microbatches, found out on real samples.

A few samples P and Q are put together in four ways.  Each term of the loss tells by PP, which
has every sample of P twice, what it is divided by: a mean stays, a sum doubles.  Then

    gradient(PP) + gradient(QQ) = gradient(PQ) + gradient(QP)

holds if every sample adds its own part, wherever it stands.  It does not hold if samples see
each other, as in a contrastive loss.  All samples draw the same random numbers meanwhile.

State that a layer keeps is tried in the same way: whether it is a mean, a sum, or neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.runtime.model.kinds import (
    metric_kinds,
    norm,
    state_kinds,
)
from holdfast.runtime.model.loss import Kind, LossKinds, Term
from holdfast.runtime.model.model_call import Batch
from holdfast.runtime.model.model_rules import computes_in_float32
from holdfast.runtime.model.random_ops import equal_draws
from holdfast.runtime.model.replica import Microbatch

_MOST_SAMPLES = 4
"""Of P and of Q: enough to see each other, few enough to cost little."""

_EXACT, _ROUGH = 2e-3, 5e-2
"""Tolerances in float32, and with layers that compute in 16 bits."""


_OF_A_KIND = 0.02
"""How near a term must come to a mean or to a sum."""


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
class TermValues:
    """The numbers of one eager call."""

    terms: tuple[Term, ...]
    rest: Any
    """What is left of the loss beside the terms."""
    metrics: dict[str, npt.NDArray[np.float64]]
    """Metric variables by path, updated from zero."""
    state: dict[str, npt.NDArray[np.float64]]
    """Other state that the call changes, by path."""


@dataclass(frozen=True, slots=True)
class _Added:
    """Two contributions, tensor by tensor; the last one is the loss and what it is divided by."""

    sums: list[npt.NDArray[np.float32]]
    norms: tuple[list[float], list[float]]
    """Of the tensors of each contribution."""
    first_loss: npt.NDArray[np.float32]
    """The last tensor of the first contribution."""


class Probe:
    """Runs a model on a few real samples, in several arrangements, without any effect.

    ``tried`` is the model's `ModelContributor`, which is told what was found.
    """

    def __init__(self, model: Any, tried: Any, first: Microbatch) -> None:
        self._model = model
        self._tried = tried
        self._half = max(1, min(_MOST_SAMPLES, first.samples // 2))
        p = list(range(self._half))
        q = [first.samples - self._half + row for row in p]
        self._p, self._q = first.rows(p), first.rows(q)
        self._pairs = [first.rows(pair) for pair in (p + p, q + q, p + q, q + p)]
        self._seeds = tf.zeros((tried.seeds, 2), tf.int64)
        self._tolerance = _EXACT if computes_in_float32(model) else _ROUGH

    @np.errstate(all="ignore")  # samples that are not finite end the first step
    def run(self) -> str | None:
        """Tell the contributor what the model's loss, metrics and state are made of.

        Returns in words how the loss mixes samples, None if it does not.
        """
        p, q, (pp, _, pq, _) = self._p, self._q, self._pairs
        calm, calm_twice = (self._of(some, training=False) for some in (p, pp))
        kinds, doubts = {}, list[str]()
        kinds[False] = _kinds(calm, calm_twice, doubts)
        small, double = (self._of(some, training=True) for some in (p, pp))
        kinds[True] = _kinds(small, double, doubts)
        metrics = metric_kinds(
            self._model.metrics,
            calm.metrics,
            calm_twice.metrics,
            lambda: [self._of(some, training=False).metrics for some in (q, pq)],
        )
        states = {}
        if small.state:
            other, whole = (self._of(some, training=True).state for some in (q, pq))
            states = state_kinds(
                self._tried.state,
                whole,
                ((0.5, small.state), (0.5, other)),
                double.state,
                self._tolerance,
                lambda values: self._of(p, values, training=True).state,
            )
        self._tried.note(kinds, metrics)
        mixing = self._difference(doubts)
        self._tried.note(kinds, metrics, states)
        return mixing

    def _of(
        self, microbatch: Microbatch, values: Iterable[tuple[Any, Any]] = (), *, training: bool
    ) -> TermValues:
        with equal_draws():
            found: TermValues = self._tried.values(Batch.of(microbatch), values, training=training)
        return found

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


def _kinds(small: TermValues, double: TermValues, doubts: list[str]) -> LossKinds:
    """Return the kinds of all terms, and add what contradicts each of them to ``doubts``."""
    kinds = [
        Kind.RATIO if term.key is not None else _kind(term.value, other.value, doubts)
        for term, other in zip(small.terms, double.terms, strict=True)
    ]
    return LossKinds(tuple(kinds), _kind(small.rest, double.rest, doubts))


def _kind(small: Any, double: Any, doubts: list[str]) -> Kind:
    """Tell a mean from a sum by what it becomes when each sample stands there twice."""
    one, two = (float(np.sum(np.asarray(value, np.float64))) for value in (small, double))
    limit = _OF_A_KIND * abs(one) + 1e-12
    if abs(two - one) <= limit or not np.isfinite([one, two]).all():
        return Kind.MEAN  # what is not finite tells nothing, and ends the training at its step
    if abs(two - 2 * one) <= limit:
        return Kind.SUM
    doubts.append(
        f"some samples have the loss {one:.6g}, and twice each of them {two:.6g}, which is neither "
        "a mean nor a sum over samples"
    )
    return Kind.MEAN


def _copied(tensors: Sequence[npt.NDArray[np.float32]]) -> list[npt.NDArray[np.float32]]:
    """Return copies in one vector, which keeps no single tensor."""
    vector = np.empty(sum(tensor.size for tensor in tensors), np.float32)
    ends = np.cumsum([tensor.size for tensor in tensors])[:-1]
    copies = np.split(vector, ends)
    for copy, tensor in zip(copies, tensors, strict=True):
        copy[:] = tensor.reshape(-1)
    return [copy.reshape(tensor.shape) for copy, tensor in zip(copies, tensors, strict=True)]
