"""Refusals of steps that microbatches on several workers cannot do, each by name.

Looks at variables without importing Keras.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

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
        for variable in call.variables:
            if variable.dtype != "float32":
                raise ProgramError(
                    f"{step} updates {variable.path!r} of type {variable.dtype}, but gradients are "
                    "exchanged as float32: keep trainable variables in float32 (a mixed_bfloat16 "
                    "policy does that)"
                )


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


def advice_for(variable: Any) -> str:
    """Return what to do about a variable that is moved before and after an update."""
    return OF_STATISTICS if "moving_" in variable.path else OF_STATE


def check_turn(turn: int | None, what: str, step: str, advice: str = OF_VALUES) -> None:
    """Raise ProgramError if a value mixes variables from before and after an update."""
    if turn is None:
        raise ProgramError(
            f"{what} of {step} is computed from variables both before and after an optimizer's "
            f"update, but the microbatches of all workers are added up at each update: {advice}"
        )


def checked_last(turn: int, last: int, what: str, step: str) -> int:
    """Return the turn, or raise ProgramError if the value needs the last update of the step."""
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
