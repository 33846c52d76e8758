"""A Keras model as an exact replica: the one file that imports TensorFlow.

One graph for each shape of microbatch makes a contribution.  It calls the model inside a
``keras.StatelessScope``, so the call changes nothing.  The changes that the call wanted to
make are read from the scope instead:

* gradients of the loss times the samples, so that sums over microbatches
  divided by all samples are the gradient of the mean loss (of a microbatch that is the
  whole batch: gradients of the mean loss itself);
* state that the call changes (moving statistics of BatchNormalization, counters):
  the new value times the samples, so that the mean is weighted by samples, or what is added;
* states of seed generators: set from the microbatch's seed, then forgotten;
* metric variables: updated from zero, so that they are sums.

A second graph divides the total by its samples, lets the optimizer apply the
gradients and assigns the moving statistics.  Tensors leave and enter as views, and are
copied once at most (`graphs.BorrowedTotal`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.recovery.order import generator_seeds
from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.batch_mixing import BatchMixing, Probe
from holdfast.runtime.model.graph_replica import GraphReplica
from holdfast.runtime.model.graphs import (
    BorrowedTotal,
    GraphCache,
    Place,
    VectorLayout,
    apart,
    compiled,
    kept,
    tensor_at,
)
from holdfast.runtime.model.kinds import check_kind, notices_of
from holdfast.runtime.model.loss import LossScale
from holdfast.runtime.model.measures import Measures
from holdfast.runtime.model.model_call import (
    Batch,
    ModelCall,
    carried_metrics,
    flat_graph,
    flat_specifications,
    flat_tensors,
    forward,
    shape_key,
    update_metrics,
)
from holdfast.runtime.model.model_rules import model_variables, unchanged
from holdfast.runtime.model.model_sums import ModelSums, ModelUpdate
from holdfast.runtime.model.random_ops import draws_from, equal_draws
from holdfast.runtime.model.replica import ContributionShape, Microbatch, Nest
from holdfast.runtime.model.step_logs import scalars

_FEW = 2
"""Samples that build a model: a loss that squeezes its targets takes no single one."""


class KerasReplica(GraphReplica):
    """A compiled Keras model that computes contributions and applies totals.

    ``x``, ``y`` and ``weights`` are those of a microbatch, with at least one sample.  A model
    that is not built yet is built with them.  If they have the shape of the job's
    microbatches, the graph is ready before the first step.  ``evaluates`` is whether the training
    has validation.

    Raises:
        ProgramError: the model cannot be trained exactly; the message names the reason.
    """

    def __init__(
        self,
        model: Any,
        x: Nest,
        y: Nest,
        weights: Nest = None,
        *,
        mixing: BatchMixing = BatchMixing.REFUSED,
        evaluates: bool = True,
    ) -> None:
        first = Microbatch(x, y, 0, weights)
        super().__init__(model, first)
        self._graphs = GraphCache()
        few = Batch.of(first.rows(slice(_FEW)))
        self._unshown = _build(model, few, evaluates=evaluates)
        model_rules.check_trainable(model.trainable_variables)
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._scale = LossScale(model.optimizer)
        self._is_whole = mixing.keeps_batches_whole
        self._sums = ModelSums(
            model,
            self._scale,
            gives_means=self._is_whole,
            carried=carried_metrics(model, few, evaluates=evaluates),
            evaluates=evaluates,
        )
        self._no_seeds = tf.zeros((len(self._sums.seeds) + 1, 2), tf.int64)
        self._draws = bool(self._sums.seeds)
        self._tensors = model_variables(model)
        self._try(first, mixing)
        self._left_out = _names_of(model, _no_sums(model, self._sums, few))
        self._shape = ContributionShape(self._make_ready(), self.measures.size)
        self._only_shown = self.measures.of_variables

    @property
    def graphs(self) -> tuple[Any, ...]:
        """The graphs of a step: that of the first microbatch, and that of the update."""
        return self._first_graph.graph, self._update.graph

    @property
    def measures(self) -> Measures:
        """How metrics of batches become those of an epoch."""
        return self._sums.measures

    def _write(self, batch: Microbatch, turn: int, out: FloatVector) -> None:
        del turn
        *tensors, metrics = self._run(batch, training=True)
        self._layout.write(out[: self._layout.size], tensors)
        out[self._layout.size :] = np.asarray(metrics)

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        """Write the sums of the metrics over validation samples."""
        (metrics,) = self._run(batch, training=False)
        out[:] = np.asarray(metrics)

    def apply(self, total: FloatVector, samples: int) -> None:
        """Update weights, optimizer and moving statistics from the total."""
        self._update(self._divisors(total, samples), self._borrowed.rows(total))

    def _gradients(self) -> Iterable[tuple[Any, Sequence[Place]]]:
        graded = len(self._sums.roles.graded)
        return [(self._model.optimizer, self._layout.places[:graded])]

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know of the training, one line each."""
        left_out = tuple(
            f"metric {name!r} is left out: it is no sum over samples, so the parts of a batch "
            "cannot be measured apart"
            for name in self._left_out
        )
        of_rows = model_rules.notices_of_rows(self._model.optimizer, self._sums.sparse)
        left_out += tuple(map(model_rules.notice_of_unshown, self._unshown))
        kinds = tuple(self._sums.metric_kinds.notices(self._left_out))
        untrained = () if self._sums.trainable else (model_rules.NO_WEIGHTS,)
        return untrained + left_out + kinds + notices_of(self._sums.state_kinds) + of_rows

    def results(self, sums: npt.NDArray[np.float64], samples: int) -> dict[str, float]:
        """Return the loss and the results of the model's metrics, from settled sums.

        A metric with several values is returned as ``name/0``, ``name/1`` and so on.
        """
        with unchanged(self._model.metrics_variables):
            loss = self.measures.assign(sums) / samples
            found = self._model.get_metrics_result()
        if not self._has_own_loss:
            found["loss"] = loss
        return dict(scalars({key: found[key] for key in found if key not in self._left_out}))

    @property
    def _has_own_loss(self) -> bool:
        """Whether a metric of the script's is what Keras shows as the loss."""
        named = [metric for metric in self._model.metrics if metric.name == "loss"]
        return bool(named) and named[-1] is not self._model._loss_tracker

    def hold(self, sums: npt.NDArray[np.float64], samples: int) -> None:
        """Let the model's metrics hold settled sums, for those who read them from the model."""
        loss, tracker = self.measures.assign(sums), self._model._loss_tracker
        tracker.total.assign(loss)
        tracker.count.assign(samples)

    def _try(self, first: Microbatch, mixing: BatchMixing) -> None:
        """Find out what the model's loss and state are made of, and trace the first graph."""
        mixed = None if mixing.keeps_batches_whole else Probe(self._model, self._sums, first).run()
        # It refuses what would also look like mixing.
        self._first_graph = self._graph(first, training=True)
        if mixing is BatchMixing.REFUSED:
            for variable in self._sums.roles.moving:
                check_kind(variable, self._sums.kind_of(variable), "the model's call")
            model_rules.check_unmixed(mixed)

    def _make_ready(self) -> int:
        """Make what an update needs; return the floats in a contribution before the metrics."""
        self._layout = VectorLayout.of(self._sums.roles.shapes)
        self._borrowed = BorrowedTotal(self._layout.size)
        self._update = self._trace_update()
        return self._layout.size

    def _run(self, batch: Microbatch, *more: Any, training: bool) -> Sequence[Any]:
        """Run the graph of the batch's shape, perhaps with ``more`` inputs; return its outputs."""
        graph = self._graph(batch, training=training)
        seeds = self._no_seeds
        if self._draws:
            seeds = tf.constant(generator_seeds(batch.seed, len(seeds)), tf.int64)
        outputs: Sequence[Any] = graph(*flat_tensors(batch), seeds, *more)
        return outputs

    def _graph(self, batch: Microbatch, *, training: bool) -> Any:
        """Return the graph for microbatches of this shape, traced at its first use.

        Shapes are fixed in the graph, because TensorFlow's bits may depend on them.  So the
        bits do not depend on the shapes of a worker's earlier microbatches.
        """
        key = (training, shape_key(batch))
        return self._graphs.get(key, lambda: self._trace(batch, training=training))

    def _trace(self, batch: Microbatch, *, training: bool) -> Any:
        def contribution(tensors: Any, seeds: Any) -> Any:
            return self._contribution(batch, training=training)(tensors, seeds)

        return flat_graph(contribution, *self._specifications(batch))

    def _contribution(self, batch: Microbatch, *, training: bool) -> Callable[..., Any]:
        """Return the function of tensors and seeds that computes the sums, for graphs."""
        found = functools.partial(self._traced, batch, training=training)
        return apart(found) if self._is_whole else found

    def _specifications(self, batch: Microbatch) -> tuple[Any, Any]:
        """Return the inputs of every graph: tensors of a batch, and the seeds of its draws."""
        return flat_specifications(batch), tf.TensorSpec(self._no_seeds.shape, tf.int64)

    def _traced(self, batch: Microbatch, tensors: Any, seeds: Any, *, training: bool) -> list[Any]:
        """Return the sums over a batch, in a graph."""
        sums = self._sums.training if training else self._sums.validation
        with draws_from(seeds[-1]) as drawn:
            outputs = sums(Batch.of(batch, tensors), seeds)
        self._draws = self._draws or drawn.count > 0
        model_rules.check_operations(outputs[-1].graph.as_graph_def())
        return outputs

    @functools.cached_property
    def _of_model(self) -> ModelUpdate:
        """The update; the first training call has told what it needs."""
        return ModelUpdate(self._model, self._sums)

    @functools.cached_property
    def _change(self) -> Callable[..., Any]:
        """The update as a function of divisors and sums, for graphs; traced once.

        A lone worker has the same one in another graph.
        """
        run = self._of_model.run
        shapes = [(len(self._of_model.parts),), *self._sums.roles.shapes]
        found = compiled(run, *(tf.TensorSpec(shape, tf.float32) for shape in shapes))
        return found or (apart(run) if self._is_whole else run)

    def _trace_update(self) -> Any:
        """Build the graph that divides the sums and updates everything."""
        places, change = self._layout.places, self._change
        graded = len(self._sums.roles.graded)

        def update(divisors: Any, rows: Any) -> None:
            sums = [tensor_at(rows, place) for place in places]
            if self._is_whole:  # no division makes tensors of their own
                sums[:graded] = map(kept, sums[:graded])
            change(divisors, *sums)

        divisors = tf.TensorSpec((len(self._of_model.parts),), tf.float32)
        return flat_graph(update, divisors, self._borrowed.specification)

    def _divisors(self, total: FloatVector, samples: int) -> Any:
        """Return what each part of the loss is divided by."""
        if len(self._of_model.parts) == 1:
            return _constant(samples)
        metrics = total[self._layout.size :]
        return tf.constant(self._of_model.divisors(samples, metrics), tf.float32)


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


def _no_sums(model: Any, sums: ModelSums, batch: Batch) -> list[Any]:
    """Return the variables that are no sums: an update must add the same to every earlier value."""
    metrics = sums.roles.metrics
    bases = [2 + np.arange(math.prod(v.shape)).reshape(v.shape) % 5 for v in metrics]
    from_zero = _updated_metrics(model, sums, (), batch)
    from_base = _updated_metrics(model, sums, zip(metrics, bases, strict=True), batch)
    found = []
    for i, variable in enumerate(metrics):
        starts_at_zero = id(variable) in sums.carried or not np.any(np.asarray(variable.value))
        is_sum = np.allclose(from_base[i], bases[i] + from_zero[i], rtol=1e-5, equal_nan=True)
        if not (starts_at_zero and is_sum):
            found.append(variable)
    return found


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


def _updated_metrics(
    model: Any, sums: ModelSums, values: Iterable[tuple[Any, Any]], batch: Batch
) -> list[npt.NDArray[np.float32]]:
    """Return the metric variables after an update that starts from ``values``."""
    call = ModelCall(model, values, sums.starts)
    with equal_draws(), call.scope:
        prediction, _ = forward(model, batch, training=False, evaluates=sums.evaluates)
        update_metrics(model, batch, prediction)
    return [np.asarray(tf.cast(call.value(v), tf.float32)) for v in sums.roles.metrics]


@functools.lru_cache(maxsize=8)
def _constant(samples: int) -> Any:
    """Return a number of samples as a tensor; steps have one or two of them."""
    return tf.constant([samples], tf.float32)
