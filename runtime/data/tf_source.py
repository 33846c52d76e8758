"""The source of what a script gives to ``fit``, and a ``tf.data.Dataset`` as one.

Any pass of a dataset can be opened, in any process: it is made anew from the dataset's graph.

A step's graphs run without Python's lock.  So the next batch of a dataset is fetched meanwhile by a
thread, on a core that is idle otherwise.  An iterator of tf.data is given up in the thread too: it
waits for the thread that tunes the pipeline, which may sleep as long as the iterator has lived, up
to a minute.  No step waits for that, and no repair after a death.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, options
from tensorflow.python.eager import wrap_function

from holdfast.runtime.data.source import (
    ForwardSource,
    ListSource,
    Passes,
    Source,
    first_batches,
    forward,
    generator_source,
    py_dataset_source,
    validation_source,
    whole_source,
)
from holdfast.runtime.data.stream import ReadAhead
from holdfast.runtime.data.tf_graph import (
    PassGraph,
    ReadVariables,
    imported,
    pass_graph,
    without_repeat,
)
from holdfast.runtime.data.tf_rows import NumberedRows
from holdfast.runtime.errors import ProgramError

_TOLD = 1024
"""Batches of a dataset without a known number that are counted before it is told.

A single epoch needs no more: its end is seen when it comes.
"""

_MOST_COUNTED = 1_000_000
"""Batches after which a dataset is taken for endless, if several epochs are asked for."""

_LARGE = 1 << 16
"""Constants of more bytes stay outside of the graph, so that it is small."""

_AHEAD = 2
"""Batches that are read while a step is computed."""

_NAME = "the tf.data.Dataset"


def source_of(
    x: Any,
    seed: int,
    *,
    passes: Passes,
    steps: int | None,
    tell: Callable[[str], None],
    is_once: bool = False,
) -> Source:
    """Return the source of a pipeline that ``fit`` was given.

    Args:
        x: a ``tf.data.Dataset``, a ``PyDataset`` or a generator.
        seed: the run's.
        passes: what is read from it, for the order and the hooks of a PyDataset.
        steps: batches to take each time, None for a whole pass.
        tell: shows one line to the user.
        is_once: whether one pass is wanted only.

    Raises:
        ProgramError: it is no pipeline, or it has no batches.
    """
    most = steps if passes is Passes.VALIDATION else None
    source: Source
    if isinstance(x, keras.utils.PyDataset):
        if x.workers > 1 or (x.workers and x.use_multiprocessing):
            tell(f"{type(x).__name__} asks for {x.workers} workers: here one thread reads it")
        source = py_dataset_source(x, seed, passes, steps)
    elif isinstance(x, types.GeneratorType):
        if steps is not None:
            return validation_source(x, steps) if most is not None else generator_source(x)
        source = ListSource(x) if passes is Passes.VALIDATION else whole_source(x)
        if source.batches == 0:
            raise ProgramError("the generator gave no batch: it has ended already, or is empty")
        return source
    elif isinstance(x, tf.data.Dataset):
        source = dataset_source(x, seed, steps)
        is_known = source.batches is not None or source.is_endless or source.repeats
        if not is_known and steps is None:
            return _counted(x, source, seed, tell, is_once=is_once)
    else:
        raise ProgramError(
            f"fit(x=...) is a {type(x).__name__}: give arrays, a tf.data.Dataset, a "
            "keras.utils.PyDataset or a generator"
        )
    if most is not None and source.is_endless and isinstance(source, ForwardSource):
        return first_batches(source, most)
    return source


def _counted(
    dataset: Any, source: Source, seed: int, tell: Callable[[str], None], *, is_once: bool
) -> Source:
    """Return the source of a dataset whose batches have to be counted by one pass.

    One that goes on and on is read as it is: its first epoch ends with it, or with a callback.
    """
    batches = 0
    for batches, _ in enumerate(source.open(0, 0)[1], start=1):
        if batches == (_TOLD if is_once else _MOST_COUNTED):
            return dataset_source(dataset, seed, batches)
        if batches == _TOLD:
            tell(
                f"{source.name} does not know its number of batches: there are more than {batches},"
                f" and they are counted up to {_MOST_COUNTED:,} before the training begins; "
                "steps_per_epoch saves this"
            )
    if not batches:
        raise ProgramError(f"{source.name} gave no batch")
    tell(
        f"{source.name} does not know its number of batches: one pass has counted {batches}; "
        f".apply(tf.data.experimental.assert_cardinality({batches})) saves this pass"
    )
    known = dataset.apply(tf.data.experimental.assert_cardinality(batches))
    return dataset_source(known, seed, batches)


class DatasetSource(Source):
    """Passes over a dataset, each made anew from its graph.

    Args:
        dataset: the script's.
        seed: the run's.
        begins: passes that plain ``fit`` begins for each one that it reads.

    Raises:
        ValueError: the dataset has no graph that can be taken, or it is too large.
    """

    name = _NAME
    array = staticmethod(np.asarray)
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
        self.has_python = self._made.has_python
        """Whether functions of Python take part, of which nothing is known."""
        self._begin = _function(self._made, self._constants, self._made.feeds(0, 0))

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        """Begin pass ``number``, always at its first batch."""
        del start
        self._variables.check()
        elements = ReadAhead(iter(self._dataset(number).prefetch(_AHEAD)))
        return 0, self._variables.watched(elements)

    @functools.cached_property
    def rows(self) -> NumberedRows | None:
        """The rows of batches by their numbers, None if only whole batches can be read."""
        if self._variables or self.batches is None:
            return None
        try:
            given = self._constants, self._spec, self.batches, self._begins
            return NumberedRows(self._made, *given)
        except (ValueError, KeyError, IndexError, tf.errors.OpError):
            return None

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
        if node.op != "Const" or _bytes_of(node.attr["value"].tensor) < _LARGE:
            continue
        tensor = node.attr["value"].tensor  # `make_ndarray` reads no strings
        value = tf.io.parse_tensor(tensor.SerializeToString(), tf.as_dtype(tensor.dtype))
        node.op = "Placeholder"
        del node.attr["value"]
        node.attr["shape"].shape.CopyFrom(value.shape.as_proto())
        found[node.name] = value
    return found


def _bytes_of(tensor: Any) -> int:
    """Return the bytes of a TensorProto, whose own count of them writes it first."""
    dtype, shape = tf.as_dtype(tensor.dtype), tf.TensorShape(tensor.tensor_shape)
    return int(tensor.ByteSize() if dtype == tf.string else dtype.size * shape.num_elements())


def _function(made: PassGraph, constants: dict[str, Any], feeds: dict[str, Any]) -> Any:
    """Return a function from constants and feeds to the dataset of a pass."""
    inputs = constants | {name: tf.constant(value) for name, value in feeds.items()}

    def begin(*values: Any) -> Any:
        (variant,) = imported(made.graph, dict(zip(inputs, values, strict=True)), [made.result])
        return variant

    signature = [tf.TensorSpec(value.shape, value.dtype) for value in inputs.values()]
    return wrap_function.wrap_function(begin, signature)
