"""The differences of two steps, tensor by tensor.

If both steps cut a tensor alike, equal digests show that it is the same.  Its contents
are read only if the cuts or the digests differ, to count elements and measure distances.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.checkpoint.errors import CheckpointInvalid, CheckpointUnreadable, StateUnsupported
from holdfast.checkpoint.manifest import Manifest, TensorEntry
from holdfast.checkpoint.scan import Scan
from holdfast.checkpoint.tensor import Tensor, TensorSpec, empty_tensor, whole_bytes_of

_CHUNK_ELEMENTS = 2**20


@dataclass(frozen=True, slots=True)
class OpenedStep:
    """A step whose manifest is verified, and the way to read it."""

    scan: Scan
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Difference:
    """A tensor that is not the same in both steps; a side that lacks it is None.

    ``elements`` is the number of elements with other bytes.  ``largest`` is the largest
    distance of two floats, NaN if only one side has a NaN.  Both are None unless the specs
    agree; ``largest`` is None as well if the tensor has no floats.
    """

    left: TensorSpec | None
    right: TensorSpec | None
    elements: int | None = None
    largest: float | None = None

    @property
    def name(self) -> str:
        """The tensor's name."""
        spec = self.left or self.right
        assert spec is not None, "one side has it"
        return spec.name


@dataclass(frozen=True, slots=True)
class Comparison:
    """All differences of two steps, in the order of names, and how many tensors are the same."""

    differences: tuple[Difference, ...]
    same: int


def compare_steps(left: OpenedStep, right: OpenedStep) -> Comparison:
    """Return the tensors that are missing, extra or changed in ``right``.

    Raises ``CheckpointInvalid`` if contents that must be read do not verify.
    """
    lefts = {tensor.spec.name: tensor for tensor in left.manifest.tensors}
    rights = {tensor.spec.name: tensor for tensor in right.manifest.tensors}
    found = []
    for name in sorted(lefts.keys() | rights.keys()):
        one, other = lefts.get(name), rights.get(name)
        if one is None or other is None or one.spec != other.spec:
            old, new = (None if tensor is None else tensor.spec for tensor in (one, other))
            found.append(Difference(old, new))
        elif not _have_same_pieces(one, other):
            difference = _difference(_read(left, one), _read(right, other), one.spec)
            found += [difference] if difference.elements else []
    return Comparison(tuple(found), len(lefts.keys() | rights.keys()) - len(found))


def _have_same_pieces(one: TensorEntry, other: TensorEntry) -> bool:
    """Return whether both are cut alike and every piece has the same digest."""
    left, right = ([(p.start, p.stop, p.digest) for p in t.pieces] for t in (one, other))
    return left == right


def _read(opened: OpenedStep, tensor: TensorEntry) -> Tensor:
    spec = tensor.spec
    try:
        array = empty_tensor(spec.dtype, spec.shape).reshape(-1)
    except MemoryError as error:
        wanted = f"tensor {spec.name!r}"
        raise CheckpointUnreadable.for_memory(opened.manifest.step, wanted) from error
    except (StateUnsupported, ValueError) as error:
        reason = f"tensor {spec.name!r} cannot be made: {error}"
        raise CheckpointInvalid(opened.manifest.step, reason) from error
    opened.scan.read_tensor(opened.manifest, tensor, whole_bytes_of(array))
    return array


def _difference(left: Tensor, right: Tensor, spec: TensorSpec) -> Difference:
    """Compare two flat arrays, a chunk at a time."""
    elements, largest = 0, 0.0
    is_float = "float" in spec.dtype
    for start in range(0, spec.size, _CHUNK_ELEMENTS):
        one, other = (a[start : start + _CHUNK_ELEMENTS] for a in (left, right))
        elements += int(np.count_nonzero(_rows(one) != _rows(other)))
        if is_float:
            largest = float(np.maximum(largest, _largest(one, other)))
    return Difference(spec, spec, elements, largest if is_float else None)


def _rows(flat: Tensor) -> Tensor:
    """Return an array's elements as unsigned integers, which compare by bytes."""
    return flat.view(f"u{flat.dtype.itemsize}")


def _largest(left: Tensor, right: Tensor) -> float:
    """Return the largest distance; equal infinities, and a NaN on both sides, count as 0."""
    one, other = left.astype(np.float64), right.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.max(np.where(same, 0.0, np.abs(one - other)), initial=0.0))
