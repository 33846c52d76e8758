"""Stands in for optimizers while a script's own step is traced.

The script hands its gradients to an optimizer, by ``apply`` or ``apply_gradients``.  That is
the place where the sum over all microbatches comes in.  So the call is caught here, and made
later with the mean gradients.  The methods are replaced on the classes, because a script may
keep its optimizers anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras

_METHODS = ("apply", "apply_gradients")


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerCall:
    """One update that the script asked an optimizer for."""

    optimizer: Any
    gradients: tuple[Any, ...]
    variables: tuple[Any, ...]
    """One for each gradient; both without the pairs whose gradient is None."""
    everything: tuple[Any, ...]
    """All variables that were given, with or without a gradient."""
    method: str
    original: Callable[..., Any]

    def make(self, gradients: Sequence[Any]) -> None:
        """Make the call now, with other gradients for the same variables."""
        variables = list(self.variables)
        if self.method == "apply":
            self.original(self.optimizer, list(gradients), variables)
        else:
            self.original(self.optimizer, list(zip(gradients, variables, strict=True)))


Handler: TypeAlias = Callable[[OptimizerCall], None]


@contextmanager
def caught_calls(handle: Handler) -> Iterator[None]:
    """Hand each update of any optimizer to ``handle``, which may make it, instead of making it."""
    is_handling = False

    def stand_in(method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def caught(optimizer: Any, *arguments: Any, **named: Any) -> Any:
            nonlocal is_handling
            if is_handling:  # the call is made, and calls methods of this optimizer or another
                return original(optimizer, *arguments, **named)
            is_handling = True
            try:
                handle(_call_of(optimizer, method, original, (arguments, named)))
            finally:
                is_handling = False
            return optimizer.iterations

        return caught

    found = [(kind, name) for kind in _kinds() for name in _METHODS if name in vars(kind)]
    originals = [(kind, name, vars(kind)[name]) for kind, name in found]
    try:
        for kind, name, original in originals:
            setattr(kind, name, stand_in(name, original))
        yield
    finally:
        for kind, name, original in originals:
            setattr(kind, name, original)


def _call_of(
    optimizer: Any, method: str, original: Callable[..., Any], given: tuple[Any, Any]
) -> OptimizerCall:
    arguments, named = given
    if method == "apply_gradients":
        pairs = list(arguments[0] if arguments else named["grads_and_vars"])
    else:
        gradients = arguments[0] if arguments else named["grads"]
        variables = arguments[1] if len(arguments) > 1 else named.get("trainable_variables")
        if variables is None:
            variables = getattr(optimizer, "_trainable_variables", ())
        pairs = list(zip(gradients, variables, strict=True))
    graded = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
    return OptimizerCall(
        optimizer,
        tuple(gradient for gradient, _ in graded),
        tuple(variable for _, variable in graded),
        tuple(variable for _, variable in pairs),
        method,
        original,
    )


def _kinds() -> Iterator[type]:
    """Yield every class of optimizer that there is."""
    known: set[type] = set()
    pending = [kind for kind in keras.optimizers.Optimizer.__mro__ if kind is not object]
    while pending:
        kind = pending.pop()
        if kind in known:
            continue
        known.add(kind)
        yield kind
        if issubclass(kind, keras.optimizers.Optimizer):
            pending.extend(kind.__subclasses__())
