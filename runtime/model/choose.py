"""The replica of a compiled Keras model, which is kept for the model's next ``fit``.

A `LoneReplica` is for a worker that computes whole batches alone: its step is one graph.

Theory.  Workers that train together stop between contribution and update: they add up, and they
vote.  A lone worker has nothing to add, and its vote is known from the numbers.  So one graph
computes the sums of a batch and, if all of them are finite, applies them.  No gradient leaves
TensorFlow.  Sums and update are the functions of `GraphReplica`, each kept apart (`graphs.apart`),
so the bits are the same.

The contribution holds two marks and the metrics.  The first mark is NaN if a gradient is not
finite, the second one if other state is not; else they are zero.

Invariant: of a contribution that is finite, every effect has happened once `contribute` returns.
One that is not finite has had none; `apply` gives it effect, if the job takes it.

Many scripts call ``fit`` in a loop, an epoch at a time.  The graphs of a replica may take half a
minute to trace.  So they are kept as long as Keras keeps its own: until the model is compiled
again, or has other variables.

What a script overrides of a Keras model and its optimizer, and what Keras looks at again.

Theory.  Keras's ``fit`` calls methods that a script may override.  A `ModelContributor` calls most
of them itself, in the graphs of a step.  Some say how Keras's own ``train_step`` does its work, as
``trainable_weights`` does.  With one of these the step is run as it stands, by a `StepContributor`.
``make_train_function`` and ``make_test_function`` are called, and what they make must run the
model's own step.  Nothing else can be divided among workers.  Nor can an ``evaluate`` of the
script, which Keras calls for each validation, or a strategy of its own: these are refused.

Keras keeps the graph of a step until ``compile``, or ``make_train_function(force=True)``.  So what
is trainable is looked at when the first step is traced, and again then only.  A model that is
frozen as a whole before its first step trains as it was compiled, as Keras's guides say: so do the
two halves of a GAN.

Invariant: no override of the script is silently left out.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.errors import JobError, ProgramError
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.graph_replica import GraphReplica, constant
from holdfast.runtime.model.graphs import VectorPlace, flat_graph
from holdfast.runtime.model.model_contributor import ModelContributor
from holdfast.runtime.model.replica import Microbatch, Replica, structure_key
from holdfast.runtime.model.step_contributor import StepContributor

_MARKS = 2
_GRADIENTS = VectorPlace(0, 1, ())
"""The mark that stands for them."""


class _Effect(IntEnum):
    """When a step changes the model."""

    NEVER = 0
    IF_FINITE = 1
    ALWAYS = 2


class LoneReplica(GraphReplica):
    """A compiled Keras model that nobody else trains; the arguments are those of its base."""

    _last: Microbatch | None = None
    """The batch that the last contribution is of, until that is applied."""
    _has_effect = False

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        """Write marks and metrics over ``batch``; update the model if all is finite."""
        self._last = batch
        out[:] = self._step(batch, _Effect.IF_FINITE)
        self._has_effect = bool(np.isfinite(out).all())

    def _write(self, batch: Microbatch, turn: int, out: FloatVector) -> None:
        del turn
        out[:] = self._step(batch, _Effect.NEVER)

    def apply(self, total: FloatVector, samples: int) -> None:
        """Give effect to the last contribution, if it has none yet."""
        del total, samples
        last, self._last = self._last, None
        assert last is not None, "a contribution comes before its total"
        if not self._has_effect:
            self._step(last, _Effect.ALWAYS)

    def _gradients(self) -> Iterable[tuple[Any, Sequence[VectorPlace]]]:
        return [(self.model.optimizer, [_GRADIENTS])]

    def _make_ready(self) -> int:
        return _MARKS

    def _step(self, batch: Microbatch, effect: _Effect) -> Any:
        (vector,) = self._run(batch, 0, constant(effect, batch.samples))
        return np.asarray(vector)

    def _trace(self, batch: Microbatch, turn: int | None) -> Any:
        if turn is None:
            return super()._trace(batch, turn)

        def step(tensors: Any, seeds: Any, order: Any) -> Any:
            *sums, metrics = self._sums(batch, turn)(tensors, seeds)
            return [self._updated(sums, metrics, order)]

        return flat_graph(step, *self._specifications(batch), tf.TensorSpec((2,), tf.float32))

    def _updated(self, sums: Sequence[Any], metrics: Any, order: Any) -> Any:
        """Add the update to the graph of a step; return marks and metrics."""
        sums = [tf.cast(tensor, tf.float32) for tensor in sums]
        graded = sum(count for _, count in self._of_step.graded(0))
        vector = tf.concat([[_mark(sums[:graded]), _mark(sums[graded:])], metrics], 0)
        effect, samples = order[0], order[1]
        is_on = tf.logical_and(
            tf.equal(effect, float(_Effect.IF_FINITE)), tf.reduce_all(tf.math.is_finite(vector))
        )
        is_on = tf.logical_or(is_on, tf.equal(effect, float(_Effect.ALWAYS)))
        divisors = tf.stack(self._of_step.divisors(samples, metrics))

        def change() -> Any:
            self._changes[0](divisors, *sums)
            return tf.constant(0)

        tf.cond(is_on, change, lambda: tf.constant(0))
        return vector


def _mark(tensors: Sequence[Any]) -> Any:
    """Return 0 if all numbers are finite, else NaN."""
    if not tensors:
        return tf.constant(0.0)
    # A finite sum has finite terms; finite terms may overflow in the sum.
    sums = tf.stack([tf.reduce_sum(tensor) for tensor in tensors])
    are_finite = tf.cond(
        tf.reduce_all(tf.math.is_finite(sums)),
        lambda: tf.constant(True),
        lambda: tf.reduce_all(
            tf.stack([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])
        ),
    )
    return tf.where(are_finite, 0.0, np.nan)


def replica_of_keras(
    model: Any,
    first: Microbatch,
    mixing: BatchMixing,
    validated: Callable[[], Microbatch | None] = lambda: None,
    *,
    evaluates: bool = True,
) -> Replica:
    """Return the replica of ``model``; ``first`` is one of the microbatches to train with.

    ``validated`` returns one of those to validate with, None if there are none.  ``evaluates`` is
    whether there may be any.

    Raises:
        ProgramError: the model cannot be trained on several workers, as one sentence tells.
    """

    def made(mixing: BatchMixing) -> Replica:
        model_rules.check_backend(keras.backend.backend())
        model_rules.check_compiled(model, keras.Model)
        if has_own_step(model):
            of_test = validated()
            own = StepContributor(model, first, mixing, of_test)
            return GraphReplica(model, own, first, of_test)
        kind = LoneReplica if mixing is BatchMixing.ALONE else GraphReplica
        return kind(model, ModelContributor(model, first, mixing, evaluates=evaluates), first)

    try:
        return made(mixing)
    except JobError:
        raise
    except Exception:  # of the script
        if first.batch_samples != 1:
            raise
        # Trials take the sample twice, and the loss may take one only, as the batches have.
        return made(BatchMixing.HARMLESS)


_RATE = 3
"""In the parts of a replica: the learning rate, behind what says when Keras makes new graphs."""

_PLACE = "_holdfast_kept_replica"
"""The attribute of the model: so a model and its replica are forgotten together."""


class _Kept(NamedTuple):
    """A replica, and the objects and shapes that its graphs were made of."""

    replica: Replica
    parts: tuple[Any, ...]
    shapes: tuple[Any, ...]


def kept_replica(
    model: Any,
    first: Microbatch,
    mixing: BatchMixing,
    tell: Callable[[str], None],
    validated: Callable[[], Microbatch | None] = lambda: None,
    *,
    evaluates: bool = True,
) -> Replica:
    """Return the replica of ``model``: that of the ``fit`` before, if nothing has changed.

    ``tell`` says what has changed since the model was compiled: Keras would keep its graphs.

    Raises:
        ProgramError: the model cannot be trained on several workers, as one sentence tells.
    """
    kept: _Kept | None = getattr(model, _PLACE, None)
    parts = _parts(model)
    own_loss = getattr(model.compute_loss, "__func__", None) is not keras.Model.compute_loss
    evaluates = evaluates or not own_loss  # Keras's own is alike in training and validation
    one = first.rows(slice(1))  # batches may have any size
    shapes = (mixing, structure_key(one.parts), evaluates)
    if kept is not None and kept.shapes == shapes and [*map(id, kept.parts)] == [*map(id, parts)]:
        return kept.replica
    if kept is not None and _has_another_rate(kept.parts, parts):
        tell(
            f"the schedule of the learning rate of {model.name!r} has changed since compile(): "
            "that takes effect here; in plain Keras it does so only after the next compile()"
        )
    made = replica_of_keras(model, first, mixing, validated, evaluates=evaluates)
    if not has_own_step(model):  # which has a state of its own
        object.__setattr__(model, _PLACE, _Kept(made, _parts(model), shapes))
    return made


def _has_another_rate(before: tuple[Any, ...], now: tuple[Any, ...]) -> bool:
    """Return whether graphs that Keras would keep have another learning rate now."""
    same = [one is other for one, other in zip(before[: _RATE + 1], now, strict=False)]
    return len(same) > _RATE and all(same[:_RATE]) and not same[_RATE]


def _parts(model: Any) -> tuple[Any, ...]:
    """Return the objects that the graphs refer to; for new graphs Keras renews the first two."""
    if not isinstance(model, keras.Model) or not model.compiled:
        return (object(),)
    optimizer = model.optimizer
    return (
        model._compile_config,
        model.train_function,
        optimizer,
        getattr(optimizer, "_learning_rate", None),
        *optimizer.variables,
        *model.variables,
    )


_OF_STEP = ("train_step", "test_step", "trainable_weights", "trainable_variables")
"""What of a model says how a step is done."""

_STEP = "_holdfast_step"
"""The attribute of a function of Keras that runs a step: the step."""

_TRACED = "_holdfast_traced"
"""The attribute of a model: its configuration and function when it was traced, and what of its
layers was trainable then."""


def overrides(owner: Any, name: str, *bases: type) -> bool:
    """Return whether an object has another method or property than these classes of Keras."""
    known = [inspect.getattr_static(base, name) for base in bases or (keras.Model,)]
    return all(inspect.getattr_static(owner, name) is not found for found in known)


def has_own_step(model: Any) -> bool:
    """Return whether a Keras model has to be trained by its ``train_step``, as that stands."""
    if not isinstance(model, keras.Model):
        return False
    optimizer = getattr(model, "optimizer", None)
    kinds = keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer
    scales = optimizer is not None and overrides(optimizer, "scale_loss", *kinds)
    return scales or any(overrides(model, name) for name in _OF_STEP)


def note_steps() -> None:
    """Let each function that Keras makes of a step know the step."""
    plain = keras.Model._make_function

    @functools.wraps(plain)
    def make(model: Any, step: Callable[..., Any]) -> Any:
        made = plain(model, step)
        setattr(made, _STEP, step)
        return made

    keras.Model._make_function = make


def make_functions(model: Any, *, validates: bool) -> None:
    """Let the model make its functions as ``fit`` does.

    Raises:
        ProgramError: they would do something else than the model's steps.
    """
    kind = type(model).__name__
    if validates and overrides(model, "evaluate"):
        raise ProgramError(
            f"{kind}.evaluate() is the script's own, and Keras calls it for each validation of "
            "fit(), which workers share as test_step() does it: override test_step() or "
            "compute_metrics(), or call evaluate() in a callback, without validation_data"
        )
    if overrides(model, "distribute_strategy"):
        raise ProgramError(
            f"{kind}.distribute_strategy is the script's own, and holdfast runs the model's step "
            "without a strategy: leave it to Keras"
        )
    for what in ("train", "test") if validates else ("train",):
        getattr(model, f"make_{what}_function")()
        step = getattr(getattr(model, f"{what}_function"), _STEP, None)
        if step != getattr(model, f"{what}_step"):
            raise ProgramError(
                f"{kind}.make_{what}_function() makes a function that does not run the model's "
                f"{what}_step(), and workers can share nothing else: let {what}_step() do the "
                "work, and leave the function to Keras"
            )


@contextlib.contextmanager
def as_traced(model: Any, tell: Callable[[str], None], *, validates: bool) -> Iterator[None]:
    """Train a model within this: its functions are made, and what was trainable is so again.

    ``tell`` shows one line if that is not what the layers say now.  They say it again afterwards.

    Raises:
        ProgramError: the model's functions do something else than its steps.
    """
    if not isinstance(model, keras.Model) or not model.compiled:
        yield  # which is refused
        return
    was_traced = model.train_function is not None
    make_functions(model, validates=validates)
    now = {layer: layer.trainable for layer in model._flatten_layers()}
    wanted = _wanted(model, now, was_traced=was_traced)
    object.__setattr__(model, _TRACED, (model._compile_config, model.train_function, wanted))
    if now == wanted:
        yield
        return
    tell(
        f"what is trainable of {model.name!r} has changed since it was compiled and trained: it "
        "trains as before, as in Keras; call compile() again for the change to take effect"
    )
    of_variables = [(variable, variable.trainable) for variable in model.variables]
    _set(wanted)
    try:
        yield
    finally:
        _set({layer: now[layer] for layer in wanted if layer.trainable == wanted[layer]})
        for variable, is_trainable in of_variables:
            variable.trainable = is_trainable


def _wanted(model: Any, now: Mapping[Any, bool], *, was_traced: bool) -> Mapping[Any, bool]:
    """Return which layers are trainable in the graphs that Keras has, or would make now."""
    config, function, known = getattr(model, _TRACED, (None, None, {}))
    is_of_now = config is model._compile_config
    if not is_of_now or function is not model.train_function:
        is_frozen = model.weights and not model.trainable_weights
        if not is_frozen and (is_of_now or not was_traced):
            return now
        known = model._compiled_trainable_state
    return {layer: known.get(layer, is_so) for layer, is_so in now.items()}


def _set(trainable: Mapping[Any, bool]) -> None:
    """Let layers be trainable or not; those that hold others come first, and set them too."""
    for layer, is_trainable in trainable.items():
        if layer.trainable != is_trainable:
            layer.trainable = is_trainable
