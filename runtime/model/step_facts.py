"""What a step is made of, in a form that workers and launches can compare.

The graphs of a step hold all of it: constants, settings of layers and optimizers, sizes.  Names of
functions, handles and addresses differ from process to process, and are left out.  The digest of an
operation is that of its kind, its attributes and what it reads.  So the order in which operations
were made does not count.

Names of layers and settings only explain a difference.  The settings are attributes of optimizers
and layers that their makers were given.  One that no graph holds may differ.  This file looks at
models without importing Keras, and at graphs without importing TensorFlow.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import numpy as np

from holdfast.checkpoint.tensor import digest_of, whole_bytes_of
from holdfast.runtime.model.model_rules import unused

_RATE = "_learning_rate"
"""A variable, or a schedule; a number that is set goes into the variable."""

_NOT_WATCHED = frozenset({"name", "inner_optimizer"})


def settings_of(model: Any) -> Iterator[tuple[Any, str]]:
    """Yield each owner of settings with the name of an attribute."""
    for optimizer in optimizers_of(model):
        yield from ((optimizer, name) for name in sorted({*_configured(optimizer), _RATE}))
    for layer in layers_of(model):
        yield from ((layer, name) for name in sorted({*_configured(layer), "trainable"}))


def _configured(owner: object) -> set[str]:
    """Return the attributes that a layer or an optimizer has under the name of an argument."""
    kind: Any = type(owner)  # mypy takes a class for not hashable
    return set(vars(owner)) & _arguments(kind) - _NOT_WATCHED


@functools.cache
def _arguments(kind: type) -> frozenset[str]:
    """Return the names of all arguments that a class, or one above it, is made with."""
    made = (vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each))
    return frozenset(name for way in made if callable(way) for name in _parameters(way))


def _parameters(way: Callable[..., Any]) -> Iterable[str]:
    with contextlib.suppress(ValueError, TypeError):  # of a class without Python code
        return inspect.signature(way).parameters
    return ()


def layers_of(model: Any) -> list[Any]:
    """Return the layers of a model, and those within them."""
    if not hasattr(model, "_flatten_layers"):
        return []
    return list(model._flatten_layers(include_self=False))


def optimizers_of(model: Any) -> Iterator[Any]:
    """Yield the optimizers that are attributes of a model, and those within them."""
    found = list(vars(model).values())
    while found:
        optimizer = found.pop(0)
        if hasattr(optimizer, "apply_gradients") and hasattr(optimizer, "get_config"):
            yield optimizer
            found += [getattr(optimizer, "inner_optimizer", None)]  # of a loss scale
            found += getattr(optimizer, "optimizers", ())  # of a MultiOptimizer


DIGEST = "digest "
"""A fact that begins so is compared, and not shown."""

_STEP = "the step"
_LOSS = "the loss"
_NOT_COMPARED = frozenset(
    {"shared_name", "container", "token", "debug_name", "config_proto", "seed", "seed2"}
)
"""Attributes that are names; and seeds of TensorFlow, for which a microbatch has its own."""
_COMPILED = "_XlaMustCompile"
_NO_SETTINGS = frozenset({"seed", "name"})
_STRINGS = 7
"""The number of TensorFlow's type of strings: a step may hold names of files, which may differ."""
_AGAIN = "{}, number {}"
_LONGEST = 100
_MOST_CONSTANTS = 4096


@dataclass(slots=True)
class GraphFacts:
    """The digests of some graphs, and their constants by the part of the step that has them."""

    whole: str = ""
    operations: str = ""
    """The digest of all operations without the values of constants, in no order."""
    constants: dict[str, str] = field(default_factory=dict)
    """Values by names in the words of the user; larger ones as digests."""
    parts: dict[str, str] = field(default_factory=dict)
    """The digest of all constants of a part of the step."""

    @staticmethod
    def of(graphs: Iterable[Any], model: Any) -> GraphFacts:
        """Return the facts of graphs, which are concrete functions, of a step of ``model``."""
        facts = GraphFacts()
        labels = {id(inner.handle): f"variable {name}" for name, inner in _variables(model)}
        part_of = _parts(model)
        kinds: Counter[str] = Counter()
        values: dict[str, list[str]] = {}
        wholes = []
        for number, function in enumerate(graphs):
            reader = _Reader(function.graph, labels)
            wholes.append(reader.digest)
            kinds.update(reader.kinds)
            for name, digest, value in reader.constants:
                part = part_of(name)
                values.setdefault(part, []).append(digest)
                if len(facts.constants) < _MOST_CONSTANTS:
                    told = f"a constant of {part} ({name})"
                    facts.constants[f"{told} in graph {number}" if number else told] = value
        facts.whole = _joined(wholes)
        facts.operations = _joined(sorted(f"{kind} {count}" for kind, count in kinds.items()))
        facts.parts = {part: _joined(sorted(of_part)) for part, of_part in values.items()}
        return facts


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What the step of a replica is made of."""

    graphs: GraphFacts
    read: Mapping[str, str]
    """The values that the step reads beside the variables of the model."""
    settings: Callable[[], Mapping[str, str]]
    """Settings of optimizers and layers, by names in the words of the user."""

    @property
    def digest(self) -> str:
        """The digest of all that acts on the step."""
        return _joined([self.graphs.whole, *(f"{name} {v}" for name, v in self.read.items())])

    def rest(self) -> Mapping[str, str]:
        """Return all facts but the settings, in the order in which a difference is told."""
        operations = {"the operations of the step": f"{DIGEST}{self.graphs.whole}"}
        return {**self.graphs.constants, **self.read, **operations}


def step_facts(model: Any, facts: GraphFacts, graphs: Iterable[Any]) -> StepFacts:
    """Return the facts of a step of ``model``; those of its ``graphs`` were found before."""
    known = {id(inner) for _, inner in _variables(model)}
    read: dict[str, str] = {}
    for function in graphs:
        graph = function.graph
        places = {id(outer): place for place, (outer, _) in enumerate(graph.captures)}
        # TensorFlow has them in no order: that of their addresses.
        for variable in sorted(
            graph.variables, key=lambda v: places.get(id(v.handle), len(places))
        ):
            if id(variable) not in known:
                known.add(id(variable))
                name = f"the variable {variable.name.partition(':')[0]!r} that the step reads"
                read[unused(name, read, _AGAIN)] = value_of(np.asarray(variable.numpy()))
    return StepFacts(facts, read, lambda: _settings(model))


def value_of(array: Any) -> str:
    """Return a single number in words, and other arrays as a digest."""
    found = np.ascontiguousarray(array)
    if found.size == 1 and found.dtype.kind in "biuf":
        return repr(found.reshape(-1)[0].item())
    if found.dtype.kind in "OSU":
        return f"{DIGEST}{digest_of(repr(found.tolist()).encode())}"
    return f"{DIGEST}{digest_of(whole_bytes_of(found))}"


class _Reader:
    """One graph with its functions: the digests of its operations, and its constants."""

    def __init__(self, graph: Any, labels: Mapping[int, str]) -> None:
        definition = graph.as_graph_def()
        self._functions = {found.signature.name: found for found in definition.library.function}
        self._known: dict[str, str] = {}
        self.kinds: Counter[str] = Counter()
        self.constants: list[tuple[str, str, str]] = []
        """Name, digest and value in words."""
        inputs = {tensor.op.name: f"input {n}" for n, tensor in enumerate(graph.inputs)}
        for outer, inner in graph.captures:
            inputs[inner.op.name] = labels.get(id(outer)) or self._captured(outer, inner.op.name)
        digests = self._nodes(definition.node, inputs)
        outputs = [f"{digests[t.op.name]}:{t.value_index}" for t in graph.outputs]
        self.digest = _joined([*sorted(digests.values()), *outputs])

    def _captured(self, outer: Any, name: str) -> str:
        """Return what the graph has taken from outside, and is no variable of the model."""
        if outer.dtype.name in ("resource", "variant", "string"):
            return f"a {outer.dtype.name}"
        value = value_of(outer.numpy())
        self.constants.append((name, value, value))
        return f"{outer.dtype.name} {value}"

    def _nodes(self, nodes: Iterable[Any], inputs: Mapping[str, str]) -> dict[str, str]:
        """Return the digest of each operation by its name."""
        digests = {name: _joined([label]) for name, label in inputs.items()}
        for node in nodes:
            if node.name in inputs:
                continue
            local = self._local(node)
            read: list[str] = []
            after: list[str] = []
            for text in node.input:
                name, _, output = text.removeprefix("^").partition(":")
                found = f"{digests.get(name, '')}:{output}"
                (after if text.startswith("^") else read).append(found)
            digests[node.name] = _joined([local, *read, "after", *sorted(after)])
        return digests

    def _local(self, node: Any) -> str:
        """Return the digest of an operation without what it reads."""
        if node.op == "Const":
            return self._constant(node)
        plain, called = [node.op], []
        for name in sorted(node.attr):
            if name != _COMPILED and (name.startswith("_") or name in _NOT_COMPARED):
                continue
            value = node.attr[name]
            functions = [value.func] if value.HasField("func") else value.list.func
            called += [self._function(found.name) for found in functions]
            if not functions:
                plain.append(f"{name} {digest_of(value.SerializeToString(deterministic=True))}")
        self.kinds[_joined(plain)] += 1  # what is called counts its own
        return _joined([*plain, *called])

    def _constant(self, node: Any) -> str:
        tensor = node.attr["value"].tensor
        if tensor.dtype == _STRINGS:
            self.kinds["Const of strings"] += 1
            return "Const of strings"
        shape = ",".join(str(size.size) for size in tensor.tensor_shape.dim)
        self.kinds[f"Const {tensor.dtype} {shape}"] += 1
        digest = digest_of(tensor.SerializeToString(deterministic=True))
        self.constants.append((node.name, digest, _number_in(tensor) or f"{DIGEST}{digest}"))
        return digest

    def _function(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = "itself"
            found = self._functions.get(name)
            self._known[name] = "" if found is None else self._digest_of(found)
        return self._known[name]

    def _digest_of(self, function: Any) -> str:
        arguments = {a.name: f"input {n}" for n, a in enumerate(function.signature.input_arg)}
        digests = self._nodes(function.node_def, arguments)
        returned = []
        for output in function.signature.output_arg:
            name, _, number = function.ret[output.name].partition(":")
            returned.append(f"{digests.get(name, '')}:{number}")
        return _joined([*sorted(digests.values()), *returned])


def _number_in(tensor: Any) -> str | None:
    """Return the number that a constant without a shape holds, None for other constants."""
    if tensor.tensor_shape.dim:
        return None
    kinds = ("float_val", "double_val", "int_val", "int64_val", "bool_val")
    values = [value for kind in kinds for value in getattr(tensor, kind)]
    return f"{values[0]:.6g}" if len(values) == 1 else None


def _variables(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and variable of TensorFlow of all variables of a model."""
    owners = [model, *optimizers_of(model)]
    for owner in owners:
        for variable in (*owner.variables, *getattr(owner, "metrics_variables", ())):
            inner = getattr(variable, "_value", variable)
            if hasattr(inner, "handle"):
                yield str(getattr(variable, "path", variable.name)), inner


def _parts(model: Any) -> Callable[[str], str]:
    """Return the function that tells of which part of the step an operation is, by its name."""
    layers = {layer.name: f"layer {layer.name!r}" for layer in layers_of(model)}
    optimizers = {type(found).__name__.lower() for found in optimizers_of(model)}

    def part_of(name: str) -> str:
        words = name.split("/")[:-1]
        for word in reversed(words):
            plain = re.sub(r"_\d+$", "", word)  # a scope that is entered again gets a number
            if word in layers or plain in layers:
                return layers.get(word) or layers[plain]
        if any(word.startswith("compile_loss") for word in words):
            return _LOSS
        scopes = {re.sub(r"_\d+$", "", word).lower() for word in words}
        return "the optimizer" if scopes & optimizers else _STEP

    return part_of


def _settings(model: Any) -> dict[str, str]:
    """Return the loss, and the settings of optimizers and layers, that have a value in words."""
    found: dict[str, str] = {}
    has_loss = getattr(model, "loss", None) is not None
    for owner, name in (*([(model, "loss")] * has_loss), *settings_of(model)):
        value = None if name in _NO_SETTINGS else _in_words(getattr(owner, name, None))
        if value is not None:
            words = name.lstrip("_").replace("_", " ")
            told = f"{words} of {type(owner).__name__} {owner.name!r}"
            found[unused(told, found, _AGAIN)] = value
    return found


def _in_words(value: Any) -> str | None:
    """Return a setting in words, None for one that has none."""
    if value is None or isinstance(value, (Number, bool, np.generic)):
        return repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, str):
        return repr(value) if "/" not in value and len(value) < _LONGEST else None
    if isinstance(value, (list, tuple)):
        words = [_in_words(each) for each in value]
        text = f"({', '.join(word for word in words if word is not None)})"
        return None if None in words or len(text) > _LONGEST else text
    if hasattr(value, "get_config") and not hasattr(value, "variables"):
        items: dict[str, str | None] = {}
        with contextlib.suppress(Exception):  # the user's own may have none
            items = {name: _in_words(each) for name, each in value.get_config().items()}
        told = (f"{n}={v}" for n, v in items.items() if v is not None and n not in _NO_SETTINGS)
        return f"{type(value).__name__}({', '.join(told)})"[:_LONGEST]
    if getattr(value, "shape", None) == () and hasattr(value, "numpy"):
        return f"{float(value.numpy()):.6g}"
    return getattr(value, "__name__", None)


def _joined(texts: Sequence[str]) -> str:
    return digest_of("\0".join(texts).encode())
