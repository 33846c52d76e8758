"""What a script overrides of a Keras model and its optimizer, and what Keras looks at again.

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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from holdfast.runtime.errors import ProgramError

_OF_STEP = ("train_step", "test_step", "trainable_weights", "trainable_variables")
"""What of a model says how a step is done."""

_STEP = "_holdfast_step"
"""The attribute of a function of Keras that runs a step: the step."""

_TRACED = "_holdfast_traced"
"""The attribute of a model: as what it was traced."""


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


@dataclass(frozen=True, slots=True)
class _Traced:
    """What the graphs of a model were made of, and which of its layers were trainable then."""

    config: Any
    train_function: Any
    trainable: Mapping[Any, bool]


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
    object.__setattr__(model, _TRACED, _Traced(model._compile_config, model.train_function, wanted))
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
    traced: _Traced | None = getattr(model, _TRACED, None)
    if traced is not None and traced.config is not model._compile_config:
        traced = None
    if traced is not None and traced.train_function is model.train_function:
        known = traced.trainable
    elif (was_traced and traced is None) or (model.weights and not model.trainable_weights):
        known = model._compiled_trainable_state
    else:
        return now
    return {layer: known.get(layer, is_so) for layer, is_so in now.items()}


def _set(trainable: Mapping[Any, bool]) -> None:
    """Let layers be trainable or not; those that hold others come first, and set them too."""
    for layer, is_trainable in trainable.items():
        if layer.trainable != is_trainable:
            layer.trainable = is_trainable
