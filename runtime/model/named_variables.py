"""Stable names for the variables of a model and its optimizer.

Only the name connects a tensor in a checkpoint with a variable.  So names are unique, and
depend only on the order in which the model's variables were made.
This file looks at variables without importing Keras.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model import model_rules


def named_variables(weights: Iterable[Any], optimizer: Iterable[Any]) -> dict[str, Any]:
    """Return variables by name: ``weights/<path>`` and ``optimizer/<path>``.

    A path that occurs again gets a number: ``weights/dense/kernel~2``.
    """
    named: dict[str, Any] = {}
    for prefix, variables in (("weights", weights), ("optimizer", optimizer)):
        for variable in variables:
            named[_unused(f"{prefix}/{variable.path}", named)] = variable
    return named


def model_variables(model: Any) -> dict[str, Any]:
    """Return the variables of a built Keras model, and of its optimizer, that a state holds.

    States of seed generators are left out: each microbatch sets its own.
    """
    state = (v for v in model.non_trainable_variables if not model_rules.is_generator_state(v))
    optimizer = getattr(model, "optimizer", None)
    return named_variables(
        [*model.trainable_variables, *state], () if optimizer is None else optimizer.variables
    )


@contextmanager
def unchanged(variables: Iterable[Any]) -> Iterator[None]:
    """Give the variables the values back that they have now."""
    before = [(v, np.asarray(v.value.read_value())) for v in variables]
    try:
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def check_tensors(variables: Mapping[str, Any], state: Tensors) -> None:
    """Raise ProgramError unless ``state`` has exactly these names, shapes and dtypes."""
    missing = sorted(variables.keys() - state.keys())
    extra = sorted(state.keys() - variables.keys())
    if missing or extra:
        raise ProgramError(
            f"the state to load is of another model: missing {some_of(missing, 3)}, unknown "
            f"{some_of(extra, 3)}; start with the script that wrote it, or in a new run directory"
        )
    for name, variable in variables.items():
        wanted = (tuple(variable.shape), str(variable.dtype))
        given = (tuple(state[name].shape), str(state[name].dtype))
        if wanted != given:
            raise ProgramError(
                f"tensor {name!r} has shape and type {given} in the state to load but {wanted} in "
                "the model: start with the script that wrote it, or in a new run directory"
            )


def _unused(name: str, taken: Collection[str]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}~{number}"
    return candidate


def some_of(names: Sequence[str], most: int) -> str:
    """Return at most so many of the names, and how many more there are."""
    if not names:
        return "none"
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
