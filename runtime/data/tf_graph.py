"""The graph of a ``tf.data`` pipeline, changed so that each of its passes stands for itself.

A ``tf.data.Dataset`` carries state from pass to pass: shuffles draw new seeds, and random
generators in mapped functions count on.  A new process could follow only by reading every pass
again.  So the dataset's graph is taken once, and each pass is made from it anew:

* a shuffle gets the seeds that it would have drawn for this pass;
* a random generator, of Keras or TensorFlow, begins at a place that follows from the pass;
* what stands before a ``cache`` stays as in the first pass, because a cache keeps that one;
* a function with such state, or one of Python, is mapped by one thread, in order;
* all results come in order (``deterministic``).

A shuffle that reshuffles draws two 32-bit numbers for each pass, with the generator Philox4x32-10
(Salmon et al., SC 2011).  TensorFlow's key is the shuffle's first seed, and the upper half of its
counter is the second one.  So pass 500 has the order that 500 passes of a plain ``fit`` would lead
to.

A pass has the values that variables have when ``fit`` begins.  Plain ``fit`` reads them while the
batches are made, some batches ahead.  So a variable that changes meanwhile is refused: its batches
would depend on chance there, and be others here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from holdfast.checkpoint.tensor import digest_of
from holdfast.recovery.order import chain
from holdfast.runtime.errors import ProgramError

_SEEDS = {"ShuffleDatasetV3": (2, 3, 4), "RandomDatasetV2": (0, 1, 2)}
"""Inputs of the two seeds and of the generator that draws seeds for each pass."""

_RESHUFFLE = {"ShuffleDatasetV3": "reshuffle_each_iteration"}
_ONCE_A_PASS = {"ZipDataset": None} | dict.fromkeys(
    {"_Retval", "AssertCardinalityDataset", "BatchDatasetV2", "FilterDataset", "MapDataset"}
    | {"OptionsDataset", "PaddedBatchDatasetV2", "ParallelBatchDataset", "ParallelMapDatasetV2"}
    | {"PrefetchDataset", "ShardDataset", "ShuffleDatasetV3", "SkipDataset", "TakeDataset"},
    1,
)
"""Operations that begin one pass over so many inputs, at once; functions read the others."""

_HARMLESS = re.compile("ReadVariableOp|Table(Find|Size)|Assert|Print|Dataset|Call|If|While")
"""Operations that TensorFlow counts as stateful, but whose order does not matter."""

_WORDS_OF_KERAS = 2
_GENERATOR_TYPES = (np.int32, np.int64, np.uint32, np.uint64)
_GOLDEN = 0x9E3779B9
_FIT_IN_31_BITS = 0x7FFFFFFF


_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_WORD = 0xFFFFFFFF
_DRAWS_PER_BLOCK = 4
_SMALL = 1 << 12
"""Variables of more bytes are compared once a pass; reading them for each batch takes long."""

_STATE_OF_GENERATOR = {(2,), (3,)}
"""Shapes of the states of random generators, which each pass is given unless they are only read."""


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
        if len(state) == _WORDS_OF_KERAS:  # Keras: seed and counter
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
    made = PassGraph(graph, name_of(end.input[0]))
    functions = {function.signature.name: function for function in graph.library.function}
    made.has_python = any("PyFunc" in op for name in functions for op in _ops(name, functions))
    read = {name_of(name) for given in _read_in(graph, functions) for name in nodes[given].input}
    once = set(reached(end, nodes, lambda node: node.input[: _ONCE_A_PASS.get(node.op, 0)]))
    live = set(reached(end, nodes, lambda node: () if "CacheDataset" in node.op else node.input))
    for node in list(graph.node):
        _put_in_order(node, functions)
        if node.op in _SEEDS:
            found = _open_seeds(made, nodes, node, (node.name in live, node.name in once))
            if found.seeds == (0, 0):  # TensorFlow's sign for "another order each time"
                found = replace(found, seeds=(chain(seed, len(made.shuffles)) >> 1, 1))
            made.shuffles.append(found)
        if node.op == "AssignVariableOp" and node.name in live - read:
            _open_generator(made, nodes, node)
    return made


def without_repeat(graph: Any) -> bool:
    """Take an endless ``repeat`` at the end of the pipeline out; return whether there was one."""
    nodes = {node.name: node for node in graph.node}
    user = next(node for node in graph.node if node.op == "_Retval")
    while True:
        node = nodes[name_of(user.input[0])]
        if node.op == "RepeatDataset":
            user.input[0] = node.input[0]
            return True
        if node.op not in ("PrefetchDataset", "OptionsDataset"):
            return False
        user = node


def _read_in(graph: Any, functions: Mapping[str, Any]) -> Iterator[str]:
    """Yield what functions of datasets capture and only read: names of nodes."""
    for node in graph.node:
        if "Targuments" in node.attr and "Tstate" not in node.attr:
            captured = node.input[1:][: len(node.attr["Targuments"].list.type)]
            (name,) = (value.func.name for value in node.attr.values() if value.func.name)
            yield from map(name_of, _only_read(functions[name], captured))


def _only_read(function: Any, captured: Sequence[Any]) -> Iterator[Any]:
    """Yield those of ``captured``, the last arguments of a function, that it only reads."""
    noted = "_read_only_resource_inputs"  # at calls of other functions
    others = {
        name
        for node in function.node_def
        if node.op != "ReadVariableOp"
        for place, name in enumerate(node.input)
        if noted not in node.attr or place not in node.attr[noted].list.i
    }
    names = [argument.name for argument in function.signature.input_arg][-len(captured) :]
    yield from (given for given, name in zip(captured, names, strict=False) if name not in others)


def reached(end: Any, nodes: Mapping[str, Any], inputs: Any) -> Iterator[str]:
    """Yield the nodes that are reached from the end through ``inputs`` of each node."""
    waiting, seen = [end], set()
    while waiting:
        for name in map(name_of, inputs(waiting.pop())):
            if name not in seen:
                seen.add(name)
                waiting.append(nodes[name])
                yield name


def _put_in_order(node: Any, functions: Mapping[str, Any]) -> None:
    if "deterministic" in node.attr:
        node.attr["deterministic"].s = b"true"
    if node.op == "ParallelMapDatasetV2" and has_state(node, functions):
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
    constant = nodes[name_of(assign.input[1])]
    if constant.op != "Const":
        return
    value = tf.make_ndarray(constant.attr["value"].tensor)
    if value.shape in _STATE_OF_GENERATOR and value.dtype.type in _GENERATOR_TYPES:
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
    if len(state) == _WORDS_OF_KERAS:
        undrawn[1] = 0
    return undrawn


def _placeholder(graph: Any, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    node = graph.node.add(name=name, op="Placeholder")
    node.attr["dtype"].type = tf.as_dtype(dtype).as_datatype_enum
    node.attr["shape"].shape.CopyFrom(tf.TensorShape(shape).as_proto())


def has_state(mapped: Any, functions: Mapping[str, Any]) -> bool:
    """Return whether the results of a mapped function depend on the order of its calls."""
    # A dataset that it captures may draw for each pass over it.
    return tf.variant.as_datatype_enum in mapped.attr["Targuments"].list.type or any(
        "PyFunc" in op
        or not (known := op_def_registry.get(op))  # a function's name
        or (known.is_stateful and not _HARMLESS.search(op))
        for op in _ops(mapped.attr["f"].func.name, functions)
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
    return int(tf.make_ndarray(nodes[name_of(name)].attr["value"].tensor))


def name_of(name: str) -> str:
    """Return the node of an input such as ``^name`` or ``name:1``."""
    return name.lstrip("^").partition(":")[0]


def imported(graph: Any, inputs: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Put a part of a graph into the one that is traced; return what its nodes ``names`` are."""
    present = {node.name for node in graph.node}
    found: list[Any] = tf.graph_util.import_graph_def(
        graph,
        input_map={f"{name}:0": value for name, value in inputs.items() if name in present},
        return_elements=[f"{name}:0" for name in names],
        name="",
    )
    return found


def pass_seeds(seed: int, seed2: int, number: int) -> tuple[int, int]:
    """Return both seeds of pass ``number`` (from 0) of a shuffle with these 64-bit seeds."""
    first = 2 * number
    block = _block(first // _DRAWS_PER_BLOCK, seed2 % 2**64, seed % 2**64)
    place = first % _DRAWS_PER_BLOCK
    return block[place], block[place + 1]


def _block(index: int, upper: int, key: int) -> list[int]:
    """Return the four numbers of one block of the generator."""
    counter = [index & _WORD, index >> 32, upper & _WORD, upper >> 32]
    keys = [key & _WORD, key >> 32]
    for _ in range(_ROUNDS):
        low, high = _MULTIPLIERS[0] * counter[0], _MULTIPLIERS[1] * counter[2]
        counter = [
            (high >> 32) ^ counter[1] ^ keys[0],
            high & _WORD,
            (low >> 32) ^ counter[3] ^ keys[1],
            low & _WORD,
        ]
        keys = [(word + step) & _WORD for word, step in zip(keys, _KEY_STEPS, strict=True)]
    return counter


class ReadVariables:
    """What the variables that ``dataset`` reads are now; none of them may change any more."""

    def __init__(self, dataset: Any) -> None:
        found = {id(variable.handle): variable for variable in _read_by(dataset)}
        self._before = [(variable, _digest(variable)) for variable in found.values()]
        self._small = [at for at in self._before if bytes_of(at[0]) <= _SMALL]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._before)

    def check(self) -> None:
        """Raise ProgramError if any has changed."""
        _compare(self._before)

    def watched(self, elements: Iterator[Any]) -> Iterator[Any]:
        """Yield the elements, and compare the small ones before each of them."""
        for element in elements:
            _compare(self._small)
            yield element


def _compare(before: list[tuple[Any, str]]) -> None:
    for variable, digest in before:
        if _digest(variable) != digest:
            name = variable.name.partition(":")[0]
            raise ProgramError(
                f"a function of the tf.data.Dataset reads the variable {name!r}, which has changed "
                "since fit() began: read it in the model, or give its values as a part of the data"
            )


def _read_by(dataset: Any) -> Iterator[Any]:
    """Yield the variables that functions of the dataset, and of those it is made of, read."""
    for function in dataset._functions():
        captured = [id(tensor) for tensor in function.function.captured_inputs]
        read = set(_only_read(function.function.function_def, captured))
        for variable in function.function.graph.variables:
            may_draw = variable.dtype.is_integer and tuple(variable.shape) in _STATE_OF_GENERATOR
            if id(variable.handle) in (read if may_draw else captured):
                yield variable
    for source in dataset._inputs():
        yield from _read_by(source)


def bytes_of(variable: Any) -> int:
    """Return the size of a variable of TensorFlow."""
    return int(np.prod(variable.shape)) * int(variable.dtype.size)


def _digest(variable: Any) -> str:
    return digest_of(variable.numpy().tobytes())
