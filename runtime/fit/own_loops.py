"""Loops of a script over ``train_on_batch``: nobody can share or save what they train.

Each worker would train all of it by itself.  One call alone is harmless: some scripts make the
variables of an optimizer with it, before they load them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras

from holdfast.runtime.errors import ProgramError


def watch_loops(has_trained: Callable[[], bool], tell: Callable[[str], None]) -> None:
    """Let ``train_on_batch`` tell what it does at its first call, and refuse a loop over it.

    Args:
        has_trained: returns whether a ``fit`` of the script has begun; then loops are left alone.
        tell: shows one line to the user.
    """
    plain = keras.Model.train_on_batch
    calls = itertools.count(1)

    @functools.wraps(plain)
    def train_on_batch(model: Any, *args: Any, **arguments: Any) -> Any:
        number = next(calls)
        if number == 1:
            tell(
                "train_on_batch() trains on each worker alike, shares nothing and saves nothing: "
                "model.fit(...), or holdfast.fit(model, ...), trains together"
            )
        elif not has_trained():
            raise ProgramError(
                "the script trains in a loop over train_on_batch(), which workers cannot share and "
                "no checkpoint can save: let model.fit(x, y, batch_size=...) run the loop, with a "
                "train_step of the model's own if it needs one, or run the script with plain python"
            )
        return plain(model, *args, **arguments)

    keras.Model.train_on_batch = train_on_batch
