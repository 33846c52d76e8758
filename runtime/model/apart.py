"""A part of a graph whose bits do not depend on the rest of it.

Theory.  TensorFlow rewrites arithmetic when it optimizes a graph: a division by a constant that
it sees may become a product.  What it sees depends on the graph around.  A function that must
not be inlined is optimized by itself, and called from any graph.  So two graphs that call it
get the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, to be called in graphs with tensors, as a part of its own."""
    wrapped: Callable[..., Any] = tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )
    return wrapped
