"""The scopes and clusters of ``tf.distribute``, which are left out: workers share each batch.

Within such a scope TensorFlow makes variables of several copies.  A worker of holdfast has
one copy of the model, so there is nothing that a scope could distribute.  For a cluster each
worker would start a server of TensorFlow, all of them at the same address.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any


def leave_out(strategy_class: Any, tell: Callable[[str], None]) -> None:
    """Let ``scope()`` of every strategy change nothing from now on.

    Args:
        strategy_class: ``tf.distribute.Strategy``, from which all strategies come.
        tell: shows one line to the user, when a script enters a scope.
    """
    plain = strategy_class.scope

    @functools.wraps(plain)
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


def leave_out_cluster(resolver_class: Any, tell: Callable[[str], None]) -> None:
    """Let the cluster of ``TF_CONFIG`` be empty from now on, as on a machine without one.

    Args:
        resolver_class: ``tf.distribute.cluster_resolver.TFConfigClusterResolver``.
        tell: shows one line to the user, when a strategy asks for the cluster.
    """
    plain = resolver_class.cluster_spec

    @functools.wraps(plain)
    def cluster_spec(self: Any) -> Any:
        found = plain(self)
        if not found.as_dict():
            return found
        tell(
            "the cluster of TF_CONFIG is left out: the workers are those of holdfast run -n "
            "(--no-fit leaves it alone)"
        )
        return type(found)({})

    resolver_class.cluster_spec = cluster_spec
