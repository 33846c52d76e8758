"""The graph of a ``tf.data`` pipeline, changed so that each of its passes stands for itself.

A ``tf.data.Dataset`` carries state from pass to pass: shuffles draw new seeds, and random
generators in mapped functions count on.  A new process could follow only by reading every pass
again.  So the dataset's graph is taken once, and each pass is made from it anew:

* a shuffle gets the seeds that it would have drawn for this pass (`philox`);
* a random generator, of Keras or TensorFlow, begins at a place that follows from the pass;
* what stands before a ``cache`` stays as in the first pass, because a cache keeps that one;
* a function with such state, or one of Python, is mapped by one thread, in order;
* all results come in order (``deterministic``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from holdfast.recovery.splitmix import chain
from holdfast.runtime.pipelines.philox import pass_seeds

_SEEDS = {"ShuffleDatasetV3": (2, 3, 4), "RandomDatasetV2": (0, 1, 2)}
"""Inputs of the two seeds and of the generator that draws seeds for each pass."""

_RESHUFFLE = {"ShuffleDatasetV3": "reshuffle_each_iteration"}

_ONCE_A_PASS = frozenset(
    {"_Retval", "AssertCardinalityDataset", "BatchDatasetV2", "FilterDataset", "MapDataset"}
    | {"OptionsDataset", "PaddedBatchDatasetV2", "ParallelBatchDataset", "ParallelMapDatasetV2"}
    | {"PrefetchDataset", "ShardDataset", "ShuffleDatasetV3", "SkipDataset", "TakeDataset"}
    | {"ZipDataset"}
)
"""Operations that begin one pass over each of their inputs, at once."""

_HARMLESS = ("ReadVariableOp", "Lookup", "Assert", "Print", "Dataset", "Call", "If", "While")
"""Operations that TensorFlow counts as stateful, but whose order does not matter."""

_VARIABLE_WORDS = (2, 3)
_GENERATOR_TYPES = (np.int32, np.int64, np.uint32, np.uint64)
_GOLDEN = 0x9E3779B9
_FIT_IN_31_BITS = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A node that draws seeds, and the names of the inputs that replace them."""

    seeds: tuple[int, int]
    inputs: tuple[str, str]
    changes: bool
    """Whether each pass has other seeds."""
    draws_once: bool
    """Whether one pass of the pipeline is one pass of this node."""

    def values(self, number: int) -> tuple[int, int]:
        """Return its seeds in pass ``number``."""
        if not self.changes or (number == 0 and not self.draws_once):
            return self.seeds
        return pass_seeds(*self.seeds, number)


@dataclass(frozen=True, slots=True)
class GeneratorState:
    """The state of a random generator that a mapped function advances."""

    first: npt.NDArray[Any]
    input: str

    def value(self, number: int) -> npt.NDArray[Any]:
        """Return the state that pass ``number`` begins with."""
        state: npt.NDArray[Any] = self.first.copy()
        if len(state) == _VARIABLE_WORDS[0]:  # Keras: seed and counter
            state[0] = (int(state[0]) + number * _GOLDEN) & _FIT_IN_31_BITS
        else:  # TensorFlow: a counter of two words, and a key
            state[1] += state.dtype.type(number)
        return state


@dataclass(slots=True)
class PassGraph:
    """The graph, and what must be given to it for a pass."""

    graph: Any
    result: str
    shuffles: list[Shuffle] = field(default_factory=list)
    generators: list[GeneratorState] = field(default_factory=list)
    has_python: bool = False

    def feeds(self, number: int, begun: int) -> dict[str, npt.NDArray[Any]]:
        """Return the values of the placeholders in pass ``number``, before which ``begun`` began.

        A pass that begins moves each shuffle on, even if nobody reads it.
        """
        found: dict[str, npt.NDArray[Any]] = {}
        for shuffle in self.shuffles:
            for name, value in zip(shuffle.inputs, shuffle.values(begun), strict=True):
                found[name] = np.array(value, np.int64)
        return found | {state.input: state.value(number) for state in self.generators}


def pass_graph(graph: Any, seed: int) -> PassGraph:
    """Change ``graph``, the GraphDef of a dataset, as described above, and return it.

    ``seed`` is the run's: shuffles without any seed draw from it.
    """
    nodes = {node.name: node for node in graph.node}
    end = next(node for node in graph.node if node.op == "_Retval")
    made = PassGraph(graph, _source(end.input[0]))
    functions = {function.signature.name: function for function in graph.library.function}
    made.has_python = any("PyFunc" in op for name in functions for op in _ops(name, functions))
    once = set(_reached(end, nodes, _begins_once))
    live = set(_reached(end, nodes, _is_not_cache))
    for node in list(graph.node):
        _put_in_order(node, functions)
        if node.op in _SEEDS:
            found = _open_seeds(made, nodes, node, (node.name in live, node.name in once))
            if found.seeds == (0, 0):  # TensorFlow's sign for "another order each time"
                found = replace(found, seeds=(chain(seed, len(made.shuffles)) >> 1, 1))
            made.shuffles.append(found)
        if node.op == "AssignVariableOp" and node.name in live:
            _open_generator(made, nodes, node)
    return made


def without_repeat(graph: Any) -> bool:
    """Take an endless ``repeat`` at the end of the pipeline out; return whether there was one."""
    nodes = {node.name: node for node in graph.node}
    user = next(node for node in graph.node if node.op == "_Retval")
    while True:
        node = nodes[_source(user.input[0])]
        if node.op == "RepeatDataset":
            user.input[0] = node.input[0]
            return True
        if node.op not in ("PrefetchDataset", "OptionsDataset"):
            return False
        user = node


def _reached(end: Any, nodes: Mapping[str, Any], passes: Any) -> Iterator[str]:
    """Yield the nodes that are reached from the end through nodes that ``passes`` accepts."""
    waiting, seen = [end], set()
    while waiting:
        node = waiting.pop()
        for name in map(_source, node.input if passes(node) else ()):
            if name not in seen:
                seen.add(name)
                waiting.append(nodes[name])
                yield name


def _begins_once(node: Any) -> bool:
    return node.op in _ONCE_A_PASS


def _is_not_cache(node: Any) -> bool:
    return not node.op.startswith("CacheDataset")


def _put_in_order(node: Any, functions: Mapping[str, Any]) -> None:
    if "deterministic" in node.attr:
        node.attr["deterministic"].s = b"true"
    if node.op == "ParallelMapDatasetV2" and _has_state(node.attr["f"].func.name, functions):
        node.op = "MapDataset"
        data = [name for name in node.input if not name.startswith("^")]
        del node.input[:]
        node.input.extend(data[:-1])  # all but the number of calls in parallel
        for name in ("deterministic", "use_unbounded_threadpool"):
            node.attr.pop(name, None)


def _open_seeds(
    made: PassGraph, nodes: Mapping[str, Any], node: Any, kind: tuple[bool, bool]
) -> Shuffle:
    """Give the node placeholders for its seeds, and a generator of its own.

    ``kind`` tells whether no cache keeps its first pass, and whether it begins once a pass.
    """
    is_live, draws_once = kind
    first, second, generator = _SEEDS[node.op]
    seeds = _integer(nodes, node.input[first]), _integer(nodes, node.input[second])
    reshuffle = _RESHUFFLE.get(node.op, "")
    changes = is_live and bool(reshuffle) and node.attr[reshuffle].b
    if changes and draws_once:
        node.attr[reshuffle].b = False
    own = made.graph.node.add(name=f"{node.name}/generator", op="DummySeedGenerator")
    node.input[generator] = own.name
    names = f"{node.name}/seed1", f"{node.name}/seed2"
    for place, name in zip((first, second), names, strict=True):
        _placeholder(made.graph, name, np.dtype(np.int64), ())
        node.input[place] = name
    return Shuffle(seeds, names, changes=changes, draws_once=draws_once)


def _open_generator(made: PassGraph, nodes: Mapping[str, Any], assign: Any) -> None:
    """Give a variable that is the state of a random generator a placeholder."""
    constant = nodes[_source(assign.input[1])]
    if constant.op != "Const":
        return
    value = tf.make_ndarray(constant.attr["value"].tensor)
    is_state = value.ndim == 1 and len(value) in _VARIABLE_WORDS
    if is_state and value.dtype.type in _GENERATOR_TYPES:
        name = f"{assign.name}/state"
        _placeholder(made.graph, name, value.dtype, value.shape)
        assign.input[1] = name
        made.generators.append(GeneratorState(_undrawn(value), name))


def _undrawn(state: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the state of a generator of Keras before its first draw, any other state as it is.

    A script looks at a batch before it trains.  By chance each process has then drawn for more
    batches or fewer, because pipelines read ahead.  A generator of TensorFlow adds its draws to
    its seed, so that nobody can tell them apart.
    """
    undrawn: npt.NDArray[Any] = state.copy()
    if len(state) == _VARIABLE_WORDS[0]:
        undrawn[1] = 0
    return undrawn


def _placeholder(graph: Any, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    node = graph.node.add(name=name, op="Placeholder")
    node.attr["dtype"].type = tf.as_dtype(dtype).as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())


def _has_state(name: str, functions: Mapping[str, Any]) -> bool:
    """Return whether a function's results depend on the order of its calls."""
    return any(
        "PyFunc" in op
        or (op_def_registry.get(op).is_stateful and not any(word in op for word in _HARMLESS))
        for op in _ops(name, functions)
    )


def _ops(name: str, functions: Mapping[str, Any]) -> Iterator[str]:
    """Yield the operations of a function, and of those that it calls."""
    for node in functions[name].node_def if name in functions else ():
        yield node.op
        for value in node.attr.values():
            if value.func.name:
                yield from _ops(value.func.name, functions)
            for called in value.list.func:
                yield from _ops(called.name, functions)


def _integer(nodes: Mapping[str, Any], name: str) -> int:
    return int(tf.make_ndarray(nodes[_source(name)].attr["value"].tensor))


def _source(name: str) -> str:
    """Return the node of an input such as ``^name`` or ``name:1``."""
    return name.lstrip("^").partition(":")[0]
