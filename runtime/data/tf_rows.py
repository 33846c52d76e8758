"""The rows of a ``tf.data`` pipeline by their numbers, so that each worker makes only its own.

Theory.  Where slices of arrays are shuffled, mapped and batched, a shuffle moves elements without
looking at them.  And a function without state gives the same for an element wherever it is called.
So the graph of a pass is cut in two:

* its *order*: ``shuffle``, ``take``, ``repeat`` and their like, over the numbers of the slices.
  All workers read it whole, which takes a microsecond for each sample;
* its *values*: the slices of some rows, and the functions in turn, as they stand in the graph.

A function after ``batch`` sees a whole batch.  It is given some rows only if each row of its
results is made of the same row of what it gets, by operations that IEEE 754 rounds exactly.
Others, such as ``exp``, may round a number differently at another place of an array.

Invariant: a row has the bytes that it has in the batch of the whole pipeline.  A pipeline of which
that is not known is not cut.

Several batches are made in one piece, unless functions are called for each element: then calls of
the iterator and of functions would take longer than the rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.eager import wrap_function
from tensorflow.python.framework import function_def_to_graph, tensor_util

from holdfast.checkpoint.tensor import Digest
from holdfast.runtime.data.batch import OwnRows, Ranges, bytes_of, own_rows
from holdfast.runtime.data.stream import ReadAhead
from holdfast.runtime.data.tf_graph import PassGraph, has_state, imported, name_of, reached

_SLICES = "TensorSliceDataset"
_BATCH = frozenset({"BatchDatasetV2", "ParallelBatchDataset"})
_MAP = frozenset({"MapDataset", "ParallelMapDatasetV2"})
_ORDER = frozenset(
    {"ShuffleDatasetV3", "RepeatDataset", "TakeDataset", "SkipDataset", "ShardDataset"}
)
"""Operations before ``batch`` that move elements without looking at them."""

_EITHER = frozenset({"PrefetchDataset", "OptionsDataset"})
"""Operations that change no element."""

_EXACT = frozenset(
    {"Identity", "Cast", "Neg", "Abs", "Square", "AddV2", "Sub", "Mul", "RealDiv", "SelectV2"}
    | {"Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual"}
    | {"LogicalAnd", "LogicalOr", "LogicalNot"}
)
"""Operations that take each number by itself, and round it exactly."""

_PIECE_BYTES, _PIECE_BATCHES = 1 << 21, 16
"""The most that is made in one piece, unless a batch has more bytes."""

_NUMBERS, _ROWS, _SIZE, _KEEP = (f"holdfast/{name}" for name in ("numbers", "rows", "size", "keep"))
_AS_IT_IS = tf.data.Options()
_AS_IT_IS.experimental_optimization.apply_default_optimizations = False
"""Rewriting the graph takes half of the time in which a pass begins, and saves nothing here."""

_ONE = tf.TensorSpec((), tf.int64)
_SOME = tf.TensorSpec((None,), tf.int64)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The graph of a pass in two: GraphDefs, and names of nodes in them."""

    order: Any
    """From `_NUMBERS`, the dataset of all numbers, to ``end``, that of a pass."""
    end: str
    arrays: tuple[str, ...]
    """What is sliced; nodes of ``order``."""
    values: Any
    """From `_ROWS`, a dataset of slices, to ``result``, one of batches."""
    result: str
    batch: int
    by_elements: bool
    """Whether `_ROWS` has an element for each slice."""


class NumberedRows:
    """The rows of the batches of any pass.

    Args:
        made: the graph of a pass.
        inputs: its large constants, by name.
        spec: of a batch.
        batches: of a pass.
        begins: passes that plain ``fit`` begins for each one that it reads.

    Raises:
        ValueError: the graph cannot be cut.
    """

    def __init__(
        self, made: PassGraph, inputs: Mapping[str, Any], spec: Any, batches: int, begins: int
    ) -> None:
        cut = _cut(made)
        self._cut, self._made, self._inputs, self._begins = cut, made, inputs, begins
        self.batches = batches
        arrays = [_array(cut, inputs, name) for name in cut.arrays]
        self._slices = len(arrays[0])
        if any(len(array) != self._slices for array in arrays):
            raise ValueError("arrays of several lengths are zipped")
        self._spec = tf.nest.map_structure(_of_any_length, spec)
        self._piece = 1 if cut.by_elements else min(_batches_a_piece(self._spec, cut), batches)
        given = self._given(0)
        signature = [tf.TensorSpec(value.shape, value.dtype) for value in given]
        rows = [_ONE, _ONE, _SOME, _SOME, *signature]
        self._begin = wrap_function.wrap_function(self._traced, rows)
        zero, none = tf.constant(0, tf.int64), tf.constant([], tf.int64)
        order, _ = self._begin(zero, zero, none, none, *given)
        samples = int(dataset_ops._VariantDataset(order, _ONE).cardinality())
        if samples < 0:
            raise ValueError("a pass has no end")
        self._samples = min(samples, batches * cut.batch)
        digest = Digest()
        for array in arrays:
            for piece in bytes_of(array):
                digest.update(piece)
        self.fingerprint = f"{digest.hexdigest()} {self._samples}"
        """Of all samples, before any function."""

    def open(self, number: int, start: int, ranges: Ranges) -> Iterator[OwnRows]:
        """Begin pass ``number`` at batch ``start``, and go on from pass to pass."""

        def elements() -> Iterator[Any]:
            """Begin each pass ahead; the one before is given up in a thread of its own."""
            for passing in itertools.count(number):
                first = start if passing == number else 0
                yield from ReadAhead(iter(self._dataset(passing, first, ranges)))

        # Of no rows there is no element, and a thread would look for one in pass after pass.
        has_rows = any(map(ranges, {size for sizes in self._pieces(0) for size in sizes}))
        pieces = itertools.chain(self._pieces(start), itertools.cycle(self._pieces(0)))
        return own_rows(ReadAhead(elements()) if has_rows else iter(()), pieces, ranges)

    def _pieces(self, start: int) -> list[list[int]]:
        """Return the samples of each batch from ``start`` on, in lists: one for each piece."""
        wholes, rest = divmod(self._samples - start * self._cut.batch, self._cut.batch)
        sizes = [self._cut.batch] * wholes + ([rest] if rest else [])
        return [sizes[i : i + self._piece] for i in range(0, len(sizes), self._piece)]

    def _dataset(self, number: int, start: int, ranges: Ranges) -> Any:
        """Return a dataset of the pieces of pass ``number``, from batch ``start`` on.

        A piece has all ranges of its batches, one after the other; without rows there is none.
        """
        last = self._pieces(start)[-1]
        full = self._places([self._cut.batch] * self._piece, ranges)
        rest = self._places(last, ranges)
        samples = self._samples if len(rest) else self._samples - sum(last)
        given = [tf.constant(value, tf.int64) for value in (start, samples, full, rest)]
        _, rows = self._begin(*given, *self._given(number))
        return dataset_ops._VariantDataset(rows, self._spec).with_options(_AS_IT_IS)

    def _places(self, sizes: Sequence[int], ranges: Ranges) -> list[int]:
        """Return the places of the ranges of batches of these sizes, one after the other."""
        first, found = 0, list[int]()
        for size in sizes:
            found += [first + row for start, stop in ranges(size) for row in range(start, stop)]
            first += size
        return found

    def _given(self, number: int) -> list[Any]:
        feeds = self._made.feeds(number, number * self._begins).values()
        return [*self._inputs.values(), *(tf.constant(value) for value in feeds)]

    def _traced(self, start: Any, samples: Any, full: Any, last: Any, *given: Any) -> Any:
        """Return the datasets of a pass's numbers and of its pieces, in the graph that is traced.

        ``full`` and ``last`` are the places of rows in a piece, and in the last one.
        """
        cut, block = self._cut, self._piece * self._cut.batch
        inputs = dict(zip([*self._inputs, *self._made.feeds(0, 0)], given, strict=True))
        inputs[_NUMBERS] = tf.data.Dataset.range(self._slices)._variant_tensor
        order, *arrays = imported(cut.order, inputs, [cut.end, *cut.arrays])
        places, size = tf.concat([full, last], 0), tf.size(full)

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def slices(numbers: Any) -> Any:
            is_full = tf.equal(tf.size(numbers), block)
            begin, end = tf.where(is_full, 0, size), tf.where(is_full, size, tf.size(places))
            own = tf.gather(numbers, places[begin:end])
            return tuple(tf.gather(array, own) for array in arrays)

        numbers = dataset_ops._VariantDataset(order, _ONE).take(samples)
        rows = numbers.skip(start * cut.batch).batch(block).map(slices)
        inputs[_ROWS] = (rows.unbatch() if cut.by_elements else rows)._variant_tensor
        inputs[_SIZE], inputs[_KEEP] = tf.cast(tf.maximum(size, 1), tf.int64), tf.constant(False)
        return order, *imported(cut.values, inputs, [cut.result])


def _cut(made: PassGraph) -> _Cut:
    """Cut the graph of a pass.

    Raises:
        ValueError: it cannot be cut.
    """
    nodes = {node.name: node for node in made.graph.node}
    functions = {function.signature.name: function for function in made.graph.library.function}
    before, batch, after, source = _chain(nodes, made.result)
    size = nodes[name_of(batch.input[1])]
    if made.has_python or made.generators or size.op != "Const":
        raise ValueError("a function of it may keep a state")
    shapes = nodes[name_of(batch.input[0])].attr["output_shapes"].list.shape
    if not all(tf.TensorShape(shape).is_fully_defined() for shape in shapes):
        raise ValueError("its elements may have several shapes, which make no whole batch")
    for node in (node for node in (*before, *after) if node.op in _MAP):
        name = node.attr["f"].func.name
        if has_state(node, functions):
            raise ValueError(f"{name} may keep a state")
        if node in after and not _keeps_rows(functions[name], nodes[name_of(node.input[0])]):
            raise ValueError(f"{name} may look at more than one row of a batch")
    arrays = tuple(_sliced(nodes, source))
    order = [node.name for node in before if node.op in _ORDER]
    values = [node.name for node in before if node.op not in _ORDER]
    by_elements = any(nodes[name].op in _MAP for name in values)
    values += [batch.name] if by_elements else []
    values += [node.name for node in after if node.op != "TakeDataset"]
    return _Cut(
        order=_linked(made.graph, (_NUMBERS, *order), arrays),
        end=(_NUMBERS, *order)[-1],
        arrays=arrays,
        values=_linked(made.graph, (_ROWS, *values)),
        result=(_ROWS, *values)[-1],
        batch=int(tf.make_ndarray(size.attr["value"].tensor)),
        by_elements=by_elements,
    )


def _chain(nodes: Mapping[str, Any], result: str) -> tuple[list[Any], Any, list[Any], Any]:
    """Return the operations before ``batch``, it, and those after it; and what all begins with."""
    before: list[Any] = []
    after: list[Any] = []
    batch, node = None, nodes[result]
    while node.op not in (_SLICES, "ZipDataset"):
        if batch is None and node.op in _BATCH:
            batch = node
        elif node.op in _MAP | _EITHER | (_ORDER if batch else {"TakeDataset"}):
            (before if batch else after).insert(0, node)
        else:
            raise ValueError(f"a {node.op} is not cut")
        node = nodes[name_of(node.input[0])]
    if batch is None:
        raise ValueError("it has no batches")
    return before, batch, after, node


def _sliced(nodes: Mapping[str, Any], source: Any) -> list[str]:
    """Return the names of the arrays that a dataset of slices, or a zip of such, is made of."""
    if source.op == _SLICES:
        return [name_of(name) for name in source.input]
    if source.op != "ZipDataset":
        raise ValueError(f"a {source.op} is not cut")
    return [array for name in source.input for array in _sliced(nodes, nodes[name_of(name)])]


def _linked(graph: Any, chain: Sequence[str], others: Sequence[str] = ()) -> Any:
    """Return the part of ``graph`` that its nodes ``chain`` and ``others`` need.

    The first of ``chain`` is a placeholder of a dataset, and each of the others reads the one
    before it.  Shapes are those of numbers, or of batches of any length.
    """
    part = tf.compat.v1.GraphDef()
    part.CopyFrom(graph)
    for name, dtype in ((chain[0], tf.variant), (_SIZE, tf.int64), (_KEEP, tf.bool)):
        part.node.add(name=name, op="Placeholder").attr["dtype"].type = dtype.as_datatype_enum
    nodes = {node.name: node for node in part.node}
    is_batched = not any(nodes[name].op in _BATCH for name in chain)
    for before, name in itertools.pairwise(chain):
        node = nodes[name]
        node.input[0] = before
        if node.op in _BATCH:
            node.input[1], node.input[-1], is_batched = _SIZE, _KEEP, True
        shapes = node.attr["output_shapes"].list.shape
        if chain[0] == _NUMBERS:
            node.attr["output_types"].list.type[:] = [tf.int64.as_datatype_enum]
            del shapes[:]
            shapes.add()  # of one number
        for dim in [dim for shape in shapes for dim in shape.dim[:1] if is_batched]:
            dim.size = -1
    wanted = {chain[-1], *others}
    for name in list(wanted):
        wanted.update(reached(nodes[name], nodes, lambda node: node.input))
    kept = [node for name, node in nodes.items() if name in wanted]
    return tf.compat.v1.GraphDef(node=kept, library=part.library, versions=part.versions)


def _keeps_rows(function: Any, source: Any) -> bool:
    """Return whether each row of what a function of a batch returns is made of the same row.

    ``source`` is the node of the dataset that it is mapped over.
    """
    shapes = [tf.TensorShape(shape) for shape in source.attr["output_shapes"].list.shape]
    if not all(shape.rank for shape in shapes):
        return False
    captured = len(function.signature.input_arg) - len(shapes)
    of_any_length = [tf.TensorShape([None, *shape[1:]]) for shape in shapes]
    try:
        graph = function_def_to_graph.function_def_to_graph(
            function, input_shapes=[*of_any_length, *[tf.TensorShape(None)] * captured]
        )
    except (ValueError, KeyError, tf.errors.OpError):
        return False
    rows = {tensor.name for tensor in graph.inputs[: len(shapes)]}
    for operation in graph.get_operations():
        of = [tensor for tensor in operation.inputs if tensor.name in rows]
        if of and not _is_by_rows(operation, of):
            return False
        rows.update(tensor.name for tensor in operation.outputs if of)
    return all(tensor.name in rows for tensor in graph.outputs)


def _is_by_rows(operation: Any, of: Sequence[Any]) -> bool:
    """Return whether an operation on ``of``, whose first axes count rows, works on each row."""
    ranks = {tensor.shape.rank for tensor in of}
    rank, names = of[0].shape.rank, {tensor.name for tensor in of}
    first, *others = operation.inputs
    if len(ranks) > 1 or not rank or any(tensor.dtype.is_complex for tensor in of):
        return False
    if operation.type in _EXACT:
        is_rounded = operation.type == "Cast" and first.dtype.is_floating
        spread = [each.shape for each in operation.inputs if each.name not in names]
        is_by_rows = all(s.rank is not None and (s.rank < rank or s[0] == 1) for s in spread)
        return is_by_rows and (not is_rounded or bool(operation.outputs[0].dtype.is_floating))
    value = tensor_util.constant_value(others[0]) if others and names == {first.name} else None
    if value is None or operation.type not in ("OneHot", "ExpandDims"):
        return False
    axis = operation.get_attr("axis") if operation.type == "OneHot" else int(value)
    return bool(axis % (rank + 1))


def _array(cut: _Cut, inputs: Mapping[str, Any], name: str) -> Any:
    """Return an array that is sliced."""
    if name in inputs:
        return np.asarray(inputs[name])
    node = next(node for node in cut.order.node if node.name == name)
    if node.op != "Const":
        raise ValueError(f"a {node.op} is not cut into slices")
    tensor = node.attr["value"].tensor
    return np.asarray(tf.io.parse_tensor(tensor.SerializeToString(), tensor.dtype))


def _of_any_length(spec: Any) -> Any:
    is_known = isinstance(spec, tf.TensorSpec) and spec.shape.rank
    return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype) if is_known else spec


def _batches_a_piece(spec: Any, cut: _Cut) -> int:
    """Return how many batches are made in one piece."""
    leaves = [leaf for leaf in tf.nest.flatten(spec) if isinstance(leaf, tf.TensorSpec)]
    numbers = [leaf.shape[1:].num_elements() or _PIECE_BYTES for leaf in leaves]
    row = sum(n * leaf.dtype.size or 1 for n, leaf in zip(numbers, leaves, strict=True))
    return max(1, min(_PIECE_BATCHES, _PIECE_BYTES // (row * cut.batch)))
