"""A ``tf.data.Dataset`` as a source: any pass of it can be opened, in any process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, options
from tensorflow.python.eager import wrap_function

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.pipelines.read_ahead import ReadAhead
from holdfast.runtime.pipelines.read_variables import ReadVariables
from holdfast.runtime.pipelines.source import ForwardSource, Source, forward
from holdfast.runtime.pipelines.tf_graph import PassGraph, pass_graph, without_repeat

_LARGE = 1 << 16
"""Constants of more bytes stay outside of the graph, so that it is small."""

_AHEAD = 2
"""Batches that are read while a step is computed."""

_NAME = "the tf.data.Dataset"


class DatasetSource:
    """Passes over a dataset, each made anew from its graph.

    Args:
        dataset: the script's.
        seed: the run's.
        begins: passes that plain ``fit`` begins for each one that it reads.

    Raises:
        ValueError: the dataset has no graph that can be taken, or it is too large.
    """

    name = _NAME
    advice = (
        "give each shuffle a seed (seed=...), take the results in order (deterministic=True), "
        "and let Python functions draw from a generator that begins anew with each pass"
    )

    def __init__(self, dataset: Any, seed: int, begins: int = 1) -> None:
        self._begins = begins
        self._variables = ReadVariables(dataset)
        self._spec = dataset.element_spec
        self._seed = seed
        graph = _graph_of(dataset)
        self.batches, self.is_endless = _length_of(dataset)
        self.repeats = self.is_endless and without_repeat(graph)
        self._make(graph)
        if self.repeats:
            batches, is_endless = _length_of(self._dataset(0))
            if batches is None and not is_endless:  # nobody knows where the next pass begins
                self.repeats = False
                self._make(_graph_of(dataset))
            else:
                self.batches, self.is_endless = batches, is_endless

    def _make(self, graph: Any) -> None:
        """Let passes be made of this graph."""
        self._constants = _take_constants(graph)
        self._made = pass_graph(graph, self._seed)
        self._begin = _function(self._made, self._constants, self._made.feeds(0, 0))

    @property
    def has_python(self) -> bool:
        """Whether functions of Python take part, of which nothing is known."""
        return self._made.has_python

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin pass ``number``, always at its first batch."""
        del start
        self._variables.check()
        elements = ReadAhead(iter(self._dataset(number).prefetch(_AHEAD)))
        return 0, self._variables.watched(elements)

    def leave(self, number: int, start: int) -> None:
        """Do nothing: passes are made anew, and the script's dataset is untouched."""

    array = staticmethod(np.asarray)

    def _dataset(self, number: int) -> Any:
        feeds = [
            tf.constant(value) for value in self._made.feeds(number, number * self._begins).values()
        ]
        variant = self._begin(*self._constants.values(), *feeds)
        return dataset_ops._VariantDataset(variant, self._spec)


def dataset_source(dataset: Any, seed: int, steps: int | None = None) -> Source:
    """Return the source of a dataset, of which ``steps`` batches are an epoch, None for a pass.

    It is only read on if functions of Python take part, which may keep a state, and if its
    graph cannot be taken: then shuffles go on from pass to pass by themselves.

    Raises:
        ProgramError: the dataset's elements are no arrays.
    """
    _check_elements(dataset.element_spec)
    try:
        source = DatasetSource(dataset, seed, _begins(dataset, steps))
    except (ValueError, IndexError, StopIteration, tf.errors.OpError):
        return forward_source(dataset, _begins(dataset, steps))
    return forward(source) if source.has_python else source


def forward_source(dataset: Any, begins: int = 1) -> ForwardSource:
    """Return a source that reads the dataset as ``fit`` does, one pass after the other.

    ``fit`` begins ``begins`` passes for each one that it reads.
    """
    batches, is_endless = _length_of(dataset)
    passes = itertools.count()

    def begin() -> Iterator[Any]:
        for _ in range(begins - 1 if next(passes) else 0):
            iter(dataset)
        return iter(dataset)

    return ForwardSource(_NAME, begin, np.asarray, batches=batches, is_endless=is_endless)


def _begins(dataset: Any, steps: int | None) -> int:
    """Return how many passes plain ``fit`` begins for each one that it reads.

    Keras 3 makes an iterator before an epoch, and another one after the last batch, if it knows
    which one that is.  With ``steps_per_epoch`` the other one is read next.
    """
    is_known = _length_of(dataset)[0] is not None
    return 2 if is_known and steps is None else 1


def _length_of(dataset: Any) -> tuple[int | None, bool]:
    """Return the batches of one pass, None if not known, and whether there is no end."""
    cardinality = int(dataset.cardinality())
    return cardinality if cardinality >= 0 else None, cardinality == tf.data.INFINITE_CARDINALITY


def _check_elements(spec: Any) -> None:
    for leaf in tf.nest.flatten(spec):
        is_left_out = leaf.value_type is type(None)  # as the weights in (x, y, None)
        if not isinstance(leaf, tf.TensorSpec) and not is_left_out:
            raise ProgramError(
                f"the tf.data.Dataset holds {type(leaf).__name__.removesuffix('Spec')}s: make "
                "plain tensors of them in a map, with .to_tensor() or tf.sparse.to_dense"
            )


def _graph_of(dataset: Any) -> Any:
    policy = options.ExternalStatePolicy.IGNORE
    graph = tf.compat.v1.GraphDef.FromString(
        dataset._as_serialized_graph(external_state_policy=policy).numpy()
    )
    if not graph.node:
        raise ValueError("the dataset is too large for a graph")
    return graph


def _take_constants(graph: Any) -> dict[str, Any]:
    """Make inputs of the graph's large constants, and return them."""
    found: dict[str, Any] = {}
    for node in graph.node:
        if node.op != "Const" or node.attr["value"].tensor.ByteSize() < _LARGE:
            continue
        value = tf.constant(tf.make_ndarray(node.attr["value"].tensor))
        node.op = "Placeholder"
        del node.attr["value"]
        node.attr["shape"].shape.CopyFrom(value.shape.as_proto())
        found[node.name] = value
    return found


def _function(made: PassGraph, constants: dict[str, Any], feeds: dict[str, Any]) -> Any:
    """Return a function from constants and feeds to the dataset of a pass."""
    inputs = constants | {name: tf.constant(value) for name, value in feeds.items()}
    names = list(inputs)

    def begin(*values: Any) -> Any:
        mapping = {f"{name}:0": value for name, value in zip(names, values, strict=True)}
        (variant,) = tf.graph_util.import_graph_def(
            made.graph, input_map=mapping, return_elements=[f"{made.result}:0"], name=""
        )
        return variant

    signature = [tf.TensorSpec(value.shape, value.dtype) for value in inputs.values()]
    return wrap_function.wrap_function(begin, signature)
