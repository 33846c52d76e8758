"""The rules for a model whose replica is exact, and the stable names of its variables.

A replica is exact when everything that a step changes is a sum over samples that travels in the
contribution.  A model, or a step of its own, that changes anything else is refused here, before the
first step, and the message names the change.  Otherwise workers would differ silently.

Only the name connects a tensor in a checkpoint with a variable.  So names are unique, and depend
only on the order in which the model's variables were made.

This file looks at models and variables without importing Keras.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from holdfast.runtime.errors import ProgramError


def check_traceable(model: Any, step: str, error: Exception) -> None:
    """Raise ProgramError if a step that runs eagerly under Keras fails when it is traced."""
    if model.run_eagerly:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise ProgramError(
            f"{type(model).__name__}.{step} runs in Keras only with run_eagerly=True, but "
            f"microbatches are computed in a graph: {type(error).__name__}: {reason}; use "
            "operations of TensorFlow or keras.ops in it instead of Python values and NumPy"
        ) from error


def check_updates(calls: Sequence[Any], step: str) -> None:
    """Raise ProgramError unless the step updates variables that can be updated from a sum."""
    if not any(call.variables for call, _ in calls):
        raise ProgramError(
            f"{step} hands no gradients to an optimizer, so that nothing is trained: call "
            "optimizer.apply(gradients, variables), or apply_gradients, in it"
        )
    for call, _ in calls:
        check_trainable(call.variables, f"{step} updates {{!r}} of type {{}}")


def check_branch(graph: Any, step: str) -> None:
    """Raise ProgramError if an optimizer is called in a branch or a loop of TensorFlow."""
    while graph is not None:
        if type(graph).__name__.startswith(("CondBranch", "While")):
            raise ProgramError(
                f"{step} calls its optimizer within tf.cond or a loop of TensorFlow, but all "
                "workers add up their gradients in each step: let each step call it, once; to "
                "update every N steps, give the optimizer gradient_accumulation_steps=N"
            )
        graph = getattr(graph, "outer_graph", None)


def check_assigned(variable: Any, step: str, *, is_known: bool) -> None:
    """Raise ProgramError if a step assigns a variable that is not the model's own."""
    if not is_known:
        raise ProgramError(
            f"{step} changes {variable.path!r}, which is neither a variable nor a metric of the "
            "model, so that it is in no checkpoint: make it an attribute of the model (a Layer, a "
            "Metric, or Layer.add_weight)"
        )


def check_order(captured: Any, step: str) -> None:
    """Raise ProgramError if a variable is assigned before gradients of it reach an optimizer."""
    for call, position in captured.calls:
        for variable in call.everything:
            _, first = captured.assigned.get(id(variable), (None, position))
            if first < position:
                raise _assigned_too_early(variable, step)


def check_gradients_of(assigned: Iterable[tuple[Any, int]], step: str, error: Exception) -> None:
    """Raise ProgramError if a tape was asked for gradients of a variable after its assignment."""
    trainable = [variable for variable, _ in assigned if variable.trainable]
    if trainable and "handle" in str(error):
        raise _assigned_too_early(trainable[0], step) from error


def _assigned_too_early(variable: Any, step: str) -> ProgramError:
    return ProgramError(
        f"{step} assigns {variable.path!r} before an optimizer updates it, so that no tape finds "
        "gradients of it: assign it after the last update of the step, or give the variable a "
        "constraint; leave out layers that assign weights in a call, such as SpectralNormalization"
    )


OF_VALUES = "use a metric of its own for each loss, or take all gradients before the first update"

OF_STATE = "keep one variable for each update in the model"

OF_STATISTICS = (
    "call that network with training=False after its update, give it LayerNormalization or "
    "GroupNormalization, or take all gradients before the first update"
)


def check_turn(turn: int | None, last: int, what: str, step: str, advice: str = OF_VALUES) -> int:
    """Return the turn of a value, at most the last.

    Raises:
        ProgramError: it mixes variables from before and after an update, or needs the last update.
    """
    if turn is None:
        raise ProgramError(
            f"{what} of {step} is computed from variables both before and after an optimizer's "
            f"update, but the microbatches of all workers are added up at each update: {advice}"
        )
    if turn > last:
        raise ProgramError(
            f"{what} of {step} is computed from the microbatch after the last update of the step, "
            "when the microbatches of all workers are added up already: compute it before "
            "optimizer.apply_gradients, or in test_step"
        )
    return turn


def check_evaluation(assigned: Sequence[Any], step: str) -> None:
    """Raise ProgramError if a step of validation changes a variable."""
    if assigned:
        raise ProgramError(
            f"{step} changes {assigned[0].path!r}, but validation must change nothing besides "
            "metrics: change it in train_step"
        )


def check_mixing(found: Any, step: str) -> None:
    """Raise ProgramError if the gradients of a batch are not those of its parts, added up."""
    if found.mixes_samples:
        raise ProgramError(
            f"{step} mixes the samples of a batch: its gradient has the norm {found.whole:.6g} for "
            f"some samples together, but {found.parts:.6g}, or another direction, as two "
            "microbatches, and is neither a mean nor a sum over samples; leave clipping to the "
            "optimizer (global_clipnorm=...), keep each batch whole with --microbatches 1, or "
            "accept the step of each microbatch with --accept-batch-mixing"
        )


def check_unmixed(mixing: str | None) -> None:
    """Raise ProgramError if the loss mixes the samples of a batch, which ``mixing`` tells."""
    if mixing is not None:
        raise ProgramError(
            f"the loss mixes the samples of a batch: {mixing}; keep each batch whole with "
            "--microbatches 1, or accept the loss of each microbatch with "
            "--accept-batch-mixing or Trainer(accept_batch_mixing=True)"
        )


HIDDEN_RANDOM_OPS = frozenset(
    {
        "Multinomial",
        "ParameterizedTruncatedNormal",
        "RandomGamma",
        "RandomPoisson",
        "RandomPoissonV2",
        "RandomShuffle",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    }
)
"""TensorFlow operations whose state cannot be set for a single microbatch."""


_LINEAR_OPTIMIZERS = frozenset({"SGD", "Lion"})
"""To these, the sum of the gradients of a row is as good as each of them."""


def check_backend(name: str) -> None:
    """Raise ProgramError unless Keras computes with TensorFlow."""
    if name != "tensorflow":
        raise ProgramError(
            f"Keras uses the backend {name!r}, but replicas of Keras models need TensorFlow: "
            "set KERAS_BACKEND=tensorflow, or implement Replica"
        )


def check_compiled(model: Any, base: Any) -> None:
    """Raise ProgramError unless ``model`` is a compiled Keras model without stateful layers."""
    if not isinstance(model, base):
        raise ProgramError(
            f"a model was expected, but {type(model).__name__} was given: hand the trainer a "
            "keras.Model, a Replica, or a function that returns one"
        )
    if not model.compiled or model.optimizer is None:
        raise ProgramError(
            f"model {model.name!r} is not compiled: call "
            "model.compile(optimizer=..., loss=...) before the training"
        )
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_states"):
            raise ProgramError(
                f"layer {layer.name!r} is stateful: its state follows the samples of one batch to "
                "the next, which microbatches on different workers cannot; use stateful=False"
            )


def check_trainable(variables: Iterable[Any], what: str = "trainable variable {!r} is {}") -> None:
    """Raise ProgramError unless all are float32; ``what`` says so of a path and another type."""
    for variable in variables:
        if variable.dtype != "float32":
            raise ProgramError(
                f"{what.format(variable.path, variable.dtype)}, but gradients are exchanged as "
                "float32: keep trainable variables in float32 (a mixed_bfloat16 policy does that)"
            )


NO_WEIGHTS = (
    "the model has no trainable weights: nothing is trained, and losses and metrics are shown, as "
    "in Keras; unfreeze a layer (layer.trainable = True) to train it"
)


def check_gradients(graded: Sequence[Any]) -> None:
    """Raise ProgramError unless the loss depends on a trainable variable."""
    if not graded:
        raise ProgramError(
            "the loss depends on none of the model's trainable variables: "
            "check that compute_loss uses the model's output"
        )


def is_whole(variable: Any) -> bool:
    """Return whether the variable holds integers, or truth values."""
    return bool(variable.dtype == "bool" or variable.dtype.startswith(("int", "uint")))


def check_state_change(variable: Any) -> None:
    """Raise ProgramError unless ``variable``, which a training call changes, can be averaged."""
    if variable.trainable:
        raise ProgramError(
            f"the model's call assigns its trainable variable {variable.path!r}, which only the "
            "optimizer may do: compute with a changed copy of it, or give it a constraint "
            "(kernel_constraint=lambda kernel: kernel * mask)"
        )
    if variable.dtype != "float32" and not is_whole(variable):
        raise ProgramError(
            f"the model's call changes {variable.path!r} of type {variable.dtype}, but only "
            "float32 can be averaged over microbatches: keep it in float32 or make it constant"
        )


def check_strangers(count: int) -> None:
    """Raise ProgramError if a call changes variables that do not belong to the model."""
    if count:
        raise ProgramError(
            f"the model's call changes {count} variables that are not the model's own, such as the "
            "state of Keras' global random generator: give each layer that draws random numbers a "
            "keras.random.SeedGenerator of its own"
        )


def check_operations(graph: Any) -> None:
    """Raise ProgramError when a traced call, a ``GraphDef``, holds operations with hidden state."""
    for operation in sorted(operations_of(graph)):
        if operation in HIDDEN_RANDOM_OPS:
            raise ProgramError(
                f"the model uses the random operation {operation}, whose state cannot be set per "
                "microbatch: use keras.random with a keras.random.SeedGenerator of the layer"
            )
        if operation.startswith(("Assign", "ResourceScatter")):
            raise ProgramError(
                f"the model's call changes a variable behind Keras ({operation}): make it with "
                "Layer.add_weight, so that all workers can share the change"
            )


def operations_of(graph: Any) -> set[str]:
    """Return the kinds of operations in a ``GraphDef`` and its functions."""
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return {node.op for node in nodes}


def notices_of_rows(optimizer: Any, paths: Sequence[str]) -> tuple[str, ...]:
    """Return what a user should know of weights whose gradients TensorFlow keeps by rows.

    Keras on TensorFlow applies nonlinear functions, such as the square of Adam, to the gradient of
    each row that a batch names.  Then it adds up rows that are named twice.
    """
    kind = type(getattr(optimizer, "inner_optimizer", optimizer)).__name__
    if not paths or kind in _LINEAR_OPTIMIZERS:
        return ()
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return (
        f"{paths[0]}{more}: losses may differ from plain Keras, because {kind} gets the sum of a "
        "word's gradients in a batch, as Keras does on JAX; on TensorFlow Keras squares each of "
        "them alone (docs/keras.md, Embedding)",
    )


def notice_of_unshown(name: str) -> str:
    """Return what a user should know of a value of ``compute_metrics`` that is no metric's."""
    return (
        f"{name!r}, which the model's compute_metrics returns, is left out: only results of "
        "metrics are shown, by their own names; keep it in a keras.metrics.Metric of the model"
    )


def is_generator_state(variable: Any) -> bool:
    """Return whether the variable is the state of a ``keras.random.SeedGenerator``."""
    return bool(variable.name == "seed_generator_state" and tuple(variable.shape) == (2,))


def accepted(function: Any, *, training: bool) -> dict[str, bool]:
    """Return ``training`` as keyword arguments if ``function`` takes it."""
    parameters = inspect.signature(function).parameters.values()
    takes = any(p.name == "training" or p.kind is p.VAR_KEYWORD for p in parameters)
    return {"training": training} if takes else {}


def computes_in_float32(model: Any) -> bool:
    """Return whether no layer computes in 16 bits, so that trials agree to float32's rounding."""
    layers = model._flatten_layers()
    return all(getattr(layer, "compute_dtype", "float32") == "float32" for layer in layers)


def seed_states(model: Any) -> tuple[Any, ...]:
    """Return the states of seed generators that a step may draw from."""
    return tuple(v for v in model.non_trainable_variables if is_generator_state(v))


def model_variables(
    model: Any, optimizers: Sequence[Any] = (), more: Iterable[Any] = ()
) -> dict[str, Any]:
    """Return the variables that a state holds, of a built Keras model and its optimizers.

    Their names are ``weights/<path>`` and ``optimizer/<path>``.  A path that occurs again gets a
    number: ``weights/dense/kernel~2``.
    States of seed generators are left out: each microbatch sets its own.  Variables that a step
    trains, but that the model does not own, belong to their optimizer.  Those that a model of the
    script's does not call trainable stay weights.  ``more`` belongs to the optimizers.
    """
    given = (getattr(model, "optimizer", None), *optimizers)
    unique = {id(o): o for o in given if o is not None}.values()
    own = [*model.trainable_variables, *model.non_trainable_variables, *model.variables]
    for optimizer in unique if optimizers else ():
        own += getattr(optimizer, "_trainable_variables", ()) if optimizer.built else ()
    weights = {id(v): v for v in own if not is_generator_state(v)}
    of_optimizers = [*(v for o in unique for v in o.variables), *more]
    named: dict[str, Any] = {}
    for prefix, variables in (("weights", weights.values()), ("optimizer", of_optimizers)):
        for variable in variables:
            named[unused(f"{prefix}/{variable.path}", named)] = variable
    return named


@contextmanager
def unchanged(variables: Iterable[Any]) -> Iterator[None]:
    """Give the variables the values back that they have now."""
    before = [(v, np.asarray(v.value.read_value())) for v in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def unused(name: str, taken: Collection[str], form: str = "{}~{}") -> str:
    """Return a name that is not taken: ``name``, or the same in this form with a number."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = form.format(name, number)
    return candidate


def some_of(names: Sequence[str], most: int) -> str:
    """Return at most so many of the names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
