"""The scopes of ``tf.distribute``, which are left out: holdfast's workers share each batch.

Within such a scope TensorFlow makes variables of several copies.  A worker of holdfast has
one copy of the model, so there is nothing that a scope could distribute.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any


def leave_out(strategy_class: Any, tell: Callable[[str], None]) -> None:
    """Let ``scope()`` of every strategy change nothing from now on.

    Args:
        strategy_class: ``tf.distribute.Strategy``, from which all strategies come.
        tell: shows one line to the user, when a script enters a scope.
    """
    plain = strategy_class.scope

    def scope(self: Any) -> contextlib.AbstractContextManager[Any]:
        name = type(self).__name__
        if name.startswith("_"):  # TensorFlow's own, for scripts that have none
            return plain(self)  # type: ignore[no-any-return]
        tell(
            f"the scope of {name} is left out: the workers of holdfast share each "
            "batch, and its size is the global one (--no-fit leaves scopes alone)"
        )
        return contextlib.nullcontext(self)

    strategy_class.scope = scope
