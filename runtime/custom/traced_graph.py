"""Graphs for microbatches of one shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from holdfast.runtime.model import model_rules
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.model.tensors import Batch, flat_specifications


def traced(body: Callable[[Batch, Any], Any], batch: Microbatch, seeds: int) -> Any:
    """Return the graph of ``body``, which gets a microbatch and ``seeds`` pairs of integers."""
    call = tf.function(lambda flat, drawn: body(Batch.of(batch, flat), drawn), autograph=False)
    graph = call.get_concrete_function(
        flat_specifications(batch), tf.TensorSpec((seeds, 2), tf.int64)
    )
    model_rules.check_operations(graph.graph.as_graph_def())
    return graph
