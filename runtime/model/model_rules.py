"""The rules for a model whose replica is exact.

A replica is exact when everything that a step changes is a sum over samples
that travels in the contribution.  A model that changes anything else is refused here,
before the first step, and the message names the change.  Otherwise workers would differ
silently.  This file looks at models without importing Keras.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from holdfast.runtime.errors import ProgramError

_HIDDEN_RANDOM_OPS = frozenset(
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
    for layer in _layers(model):
        _check_layer(layer)


def check_trainable(variables: Iterable[Any]) -> None:
    """Raise ProgramError unless all trainable variables are float32."""
    for variable in variables:
        if variable.dtype != "float32":
            raise ProgramError(
                f"trainable variable {variable.path!r} is {variable.dtype}, but gradients are "
                "exchanged as float32: keep trainable variables in float32 (a mixed_bfloat16 "
                "policy does that)"
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


def check_state_change(variable: Any) -> None:
    """Raise ProgramError unless ``variable``, which a training call changes, can be averaged."""
    if variable.trainable:
        raise ProgramError(
            f"the model's call assigns its trainable variable {variable.path!r}, which only the "
            "optimizer may do: compute with a changed copy of it, or give it a constraint "
            "(kernel_constraint=lambda kernel: kernel * mask)"
        )
    is_whole = variable.dtype == "bool" or variable.dtype.startswith(("int", "uint"))
    if variable.dtype != "float32" and not is_whole:
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
    for operation in hidden_state(graph):
        if operation in _HIDDEN_RANDOM_OPS:
            raise ProgramError(
                f"the model uses the random operation {operation}, whose state cannot be set per "
                "microbatch: use keras.random with a keras.random.SeedGenerator of the layer"
            )
        raise ProgramError(
            f"the model's call changes a variable behind Keras ({operation}): make it with "
            "Layer.add_weight, so that all workers can share the change"
        )


def hidden_state(graph: Any) -> Iterator[str]:
    """Yield the operations of a ``GraphDef`` that draw numbers or change variables, sorted."""
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    for operation in sorted({node.op for node in nodes}):
        is_assignment = operation.startswith(("Assign", "ResourceScatter"))
        if operation in _HIDDEN_RANDOM_OPS or is_assignment:
            yield operation


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


def _check_layer(layer: Any) -> None:
    if getattr(layer, "stateful", False) and hasattr(layer, "reset_states"):
        raise ProgramError(
            f"layer {layer.name!r} is stateful: its state follows the samples of one batch to the "
            "next, which microbatches on different workers cannot; use stateful=False"
        )


def _layers(model: Any) -> list[Any]:
    """Return the model and all layers in it, at any depth."""
    found = [model]
    for layer in getattr(model, "_layers", ()):
        found.extend(_layers(layer))
    return found


def computes_in_float32(model: Any) -> bool:
    """Return whether no layer computes in 16 bits, so that trials agree to float32's rounding."""
    layers = model._flatten_layers()
    return all(getattr(layer, "compute_dtype", "float32") == "float32" for layer in layers)
