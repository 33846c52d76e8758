"""Graphs for microbatches of one shape, their bits, and tensors over the memory of a total.

Theory.  TensorFlow rewrites arithmetic when it optimizes a graph: a division by a constant that it
sees may become a product.  What it sees depends on the graph around.  A function that must not be
inlined is optimized by itself, and called from any graph.  So two graphs that call it get the same
bits.

Shapes are fixed in a graph, because TensorFlow's bits may depend on them.  So sequences that are
padded to the longest of their batch trace the model again and again.  `GraphCache` holds how many
graphs are kept, and what they cost.

Every tensor begins at a multiple of 64 bytes of the gradient part of a contribution.  So a view of
it can be handed to TensorFlow through DLPack without a copy.  TensorFlow ends the process if a
buffer has another alignment.  The floats between two tensors are padding and always zero, so equal
tensors make equal vectors.
"""

from __future__ import annotations

import functools
import math
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.memory import (
    ALIGNMENT_BYTES,
    address_of,
    aligned_vector,
    writable_alias,
)
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.replica import Microbatch, Nest, leaves, map_leaves, pack
from holdfast.runtime.run.numerics import Numerics


def apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function``, to be called in graphs with tensors, as a part of its own."""
    wrapped: Callable[..., Any] = tf.function(
        function, autograph=False, experimental_attributes={"_noinline": True}
    )
    return wrapped


@dataclass(slots=True)
class _Xla:
    """Whether XLA may compile; a setting of the process, as TensorFlow's own are."""

    is_on: bool = False


_xla = _Xla()

_NOT_COMPILED = model_rules.HIDDEN_RANDOM_OPS | {"Assert", "CheckNumerics", "CheckNumericsV2"}
_DRAWS = "StatelessRandom"
"""Operations that XLA compiles to something else: a check to nothing, a draw to another one."""


_COMPILED_FROM = 1 << 18
"""Floats of all arguments.  Fewer stay in a core's cache, so XLA makes a step hardly faster, and
takes half a second of a core for itself (decision 0079)."""

Divide: TypeAlias = Callable[[Any, Any], Any]
"""A sum of float32 over its divisor; over 0 it is 0."""


def quotient(total: Any, divisor: Any) -> Any:
    """Return the nearest float to ``total / divisor``."""
    return tf.math.divide_no_nan(total, divisor)


def scaled(total: Any, divisor: Any) -> Any:
    """Return ``total`` times the nearest float to ``1 / divisor``.

    XLA does no division twice: it would write quotients that several operations read to memory.
    """
    return tf.math.multiply_no_nan(total, tf.math.divide_no_nan(1.0, divisor))


def compiled(function: Callable[..., Any], *specifications: Any) -> Callable[..., Any] | None:
    """Return ``function``, compiled by XLA, to be called in graphs; None if that cannot be or pay.

    Its arguments are tensors of these shapes and dtypes.  A compiled function is optimized by
    itself, so its bits are the same in each graph that calls it.
    """
    floats = sum(each.shape.num_elements() for each in specifications)
    if not _xla.is_on or floats < _COMPILED_FROM:
        return None
    wrapped: Any = tf.function(function, autograph=False, jit_compile=True)
    try:
        traced = wrapped.get_concrete_function(*specifications)
        operations = model_rules.operations_of(traced.graph.as_graph_def())
        if operations & _NOT_COMPILED or any(name.startswith(_DRAWS) for name in operations):
            return None
        _compile(wrapped, traced.graph.variables, specifications)
    except (MemoryError, tf.errors.ResourceExhaustedError):
        raise  # the next launch may have the memory, and would have other bits
    except Exception:  # of the script, or of an operation that XLA does not know
        return None
    found: Callable[..., Any] = wrapped
    return found


def _compile(wrapped: Any, variables: Iterable[Any], specifications: Sequence[Any]) -> None:
    """Call a function once, from a graph, on zeros in place of all variables.

    XLA compiles it by that, and other graphs that call it find it compiled.  Raises ``TypeError``
    if it reaches a variable by its handle alone: none can take its place.
    """
    with tf.init_scope():
        call = tf.function(wrapped, autograph=False)
        graph = call.get_concrete_function(*specifications)
        zeros = {id(v.handle): tf.Variable(tf.zeros(v.shape, v.dtype)) for v in variables}
        if any(h.dtype == tf.resource and id(h) not in zeros for h in graph.captured_inputs):
            raise TypeError("a handle of no variable")
        handles = [h if id(h) not in zeros else zeros[id(h)].handle for h in graph.captured_inputs]
        tensors = [tf.zeros(each.shape, each.dtype) for each in specifications]
        graph.inference_fn.call_flat(*tensors, *handles)


MOST_KEPT = 256
"""Each graph takes some megabytes."""

TOLD_AT = 32
"""Shapes after which a user should hear of it; ordinary jobs have two to eight."""


class GraphCache:
    """Graphs by the shape that they are for; the oldest one goes when there are too many.

    A graph that comes again is traced again, and is the same.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._graphs: dict[Hashable, Any] = {}
        self._clock = clock
        self._traced = 0
        self._seconds = 0.0

    def __len__(self) -> int:
        return len(self._graphs)

    def get(self, key: Hashable, trace: Callable[[], Any]) -> Any:
        """Return the graph for ``key``; ``trace`` makes it if it is not there."""
        graph = self._graphs.get(key)
        if graph is not None:
            return graph
        begin = self._clock()
        graph = self._graphs[key] = trace()
        if len(self._graphs) > MOST_KEPT:
            del self._graphs[next(iter(self._graphs))]
        self._seconds += self._clock() - begin
        self._traced += 1
        if self._traced == TOLD_AT:
            warnings.warn(
                f"the model was traced for {TOLD_AT} shapes of microbatches so far, which took "
                f"{self._seconds:.0f} s: pad sequences to a few lengths, such as multiples of 32",
                stacklevel=2,
            )
        return graph


ROW_FLOATS = ALIGNMENT_BYTES // 4
"""The vector is a sequence of whole rows, and tensors begin where a row begins."""


@dataclass(frozen=True, slots=True)
class VectorPlace:
    """One tensor's floats in the vector: ``[start, stop)``."""

    start: int
    stop: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class VectorLayout:
    """Places of all tensors, and the size in floats of the vector that holds them."""

    places: tuple[VectorPlace, ...]
    size: int

    @staticmethod
    def of(shapes: Iterable[tuple[int, ...]]) -> VectorLayout:
        """Return the layout that puts tensors of these shapes one after the other."""
        places = []
        start = 0
        for shape in shapes:
            stop = start + math.prod(shape)
            places.append(VectorPlace(start, stop, tuple(shape)))
            start = -(-stop // ROW_FLOATS) * ROW_FLOATS
        return VectorLayout(tuple(places), start)

    @functools.cached_property
    def padding(self) -> tuple[slice, ...]:
        """The stretches of the vector that belong to no tensor."""
        starts = [*(place.start for place in self.places[1:]), self.size]
        gaps = ((place.stop, start) for place, start in zip(self.places, starts, strict=False))
        return tuple(slice(stop, start) for stop, start in gaps if stop < start)

    def write(self, out: FloatVector, tensors: Sequence[Any]) -> None:
        """Write tensors at their places, and zeros elsewhere."""
        for place, tensor in zip(self.places, tensors, strict=True):
            out[place.start : place.stop] = np.asarray(tensor).reshape(-1)
        for gap in self.padding:
            out[gap] = 0.0
        out[self.size :] = 0.0


class BorrowedTotal:
    """Hands the first ``size`` floats of totals to TensorFlow, in rows of 64 bytes.

    Totals mostly lie at the same place, so the last tensor is kept.  A total that is not
    aligned is copied.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._last: tuple[FloatVector, Any] = (np.empty(0, np.float32), None)

    @property
    def specification(self) -> Any:
        """Shape and dtype of the rows."""
        return tf.TensorSpec((self._size // ROW_FLOATS, ROW_FLOATS), tf.float32)

    def rows(self, total: FloatVector) -> Any:
        """Return the rows, which are valid as long as the total is."""
        sums = total[: self._size]
        if address_of(sums) % ALIGNMENT_BYTES:
            sums = aligned_vector(self._size)
            sums[:] = total[: self._size]
        if address_of(sums) != address_of(self._last[0]):
            rows = writable_alias(sums).reshape(-1, ROW_FLOATS)
            self._last = sums, tf.experimental.dlpack.from_dlpack(rows.__dlpack__())
        return self._last[1]


def tensor_at(rows: Any, place: VectorPlace) -> Any:
    """Return a tensor of the flat vector, which TensorFlow gets in rows of 64 bytes.

    A run of whole rows is a view.  A tensor that ends within a row is copied.  Such tensors
    are small: large ones hardly ever have an odd last dimension.
    """
    run = rows[place.start // ROW_FLOATS : -(-place.stop // ROW_FLOATS)]
    if place.stop % ROW_FLOATS:
        run = tf.reshape(run, [-1])[: place.stop - place.start]
    return tf.reshape(run, place.shape)


def kept(tensor: Any) -> Any:
    """Return a copy of a tensor of the total: a variable may share the memory that it is given."""
    return tf.raw_ops.DeepCopy(x=tensor)


def set_numerics(numerics: Numerics, seed: int) -> None:
    """Fix threads, seeds, determinism and the use of XLA, before any TensorFlow operation.

    Raises:
        ProgramError: TensorFlow has been used already, with other threads.
    """
    set_threads(numerics.threads)
    keras.utils.set_random_seed(seed % (1 << 32))
    if numerics.deterministic:
        tf.config.experimental.enable_op_determinism()
    _xla.is_on = numerics.uses_xla


def set_threads(threads: int) -> None:
    """Let ``threads`` work inside one operation, and operations run one after the other.

    Raises:
        ProgramError: TensorFlow has been used already, with other threads.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    except RuntimeError as error:
        raise ProgramError(
            f"TensorFlow cannot be set to {threads} threads because the program has used it "
            "already: build model and data inside the function that is given to Trainer"
        ) from error


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples as Keras gets them: nests of tensors."""

    x: Nest
    y: Nest
    weights: Nest

    @staticmethod
    def of(microbatch: Microbatch, tensors: Sequence[Any] | None = None) -> Batch:
        """Return a microbatch as tensors, or the given tensors in the microbatch's structure."""
        flat = iter(flat_tensors(microbatch) if tensors is None else tensors)
        return Batch(*pack(microbatch.parts, flat))

    def mapped(self, change: Callable[[Any], Any]) -> Batch:
        """Return the batch with ``change`` of each tensor."""
        return Batch(*map_leaves(change, (self.x, self.y, self.weights)))

    @property
    def targets(self) -> Nest:
        """The targets, None if there are none."""
        return None if self.is_x_alone else self.y

    @property
    def is_x_alone(self) -> bool:
        """Whether a pipeline gave ``(x,)``, and not x: then ``y`` is ``()``."""
        return isinstance(self.y, tuple) and not self.y

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(leaves(self.x)[0].shape[0])


class FlatGraph:
    """A traced graph, a ``ConcreteFunction``, that is called with flat tensors.

    To call the graph itself takes 0.15 ms more, in which its arguments are bound by name.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._function = graph.inference_fn
        self._captured = tuple(graph.captured_inputs)

    def __call__(self, *tensors: Any) -> Sequence[Any]:
        """Return the flat outputs for tensors of the shapes and dtypes of the trace."""
        found: Sequence[Any] = self._function.call_flat(*tensors, *self._captured)
        return found


def flat_graph(function: Callable[..., Any], *specifications: Any) -> FlatGraph:
    """Trace a function of tensors, which have these shapes and dtypes, into a graph."""
    traced = tf.function(function, autograph=False)
    return FlatGraph(traced.get_concrete_function(*specifications))


def flat_tensors(microbatch: Microbatch) -> list[Any]:
    """Return all arrays of a microbatch as tensors."""
    return [_tensor(array) for array in leaves(microbatch.parts)]


def _tensor(array: Any) -> Any:
    """Return the array as a tensor; floats of other widths become float32, as in ``Model.fit``."""
    array = np.asarray(array)
    wide = array.dtype.kind == "f" and array.dtype != np.float32
    if wide:
        return tf.constant(array.astype(np.float32))
    if _is_borrowed(array):  # a copy takes 20 us more in a small step
        lent = array if array.flags.writeable else writable_alias(array)
        return tf.experimental.dlpack.from_dlpack(lent.__dlpack__())
    return tf.constant(array)


def _is_borrowed(array: Any) -> bool:
    """Return whether TensorFlow can use the memory of the array."""
    if not array.nbytes or array.dtype.kind not in "iuf":
        return False
    is_native = array.dtype.isnative and array.flags.c_contiguous
    return bool(is_native) and address_of(array) % ALIGNMENT_BYTES == 0
