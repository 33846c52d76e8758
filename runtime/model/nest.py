"""Nests of arrays: one array, or dicts, lists and tuples of them at any depth.

None stands for arrays that are not there, such as the targets of an autoencoder.  This file
knows no Keras: data are checked before TensorFlow is loaded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.generic]
Nest: TypeAlias = Any
"""An array, None, or a dict, list or tuple of nests; a recursive type tells no more in practice."""


def leaves(nest: Nest) -> list[Any]:
    """Return the arrays of a nest in their order, without None."""
    return [leaf for _, leaf in named_leaves(nest)]


def named_leaves(nest: Nest, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a nest, each with the expression that leads to it: ``x['age'][0]``."""
    if isinstance(nest, Mapping):
        for key, value in nest.items():
            yield from named_leaves(value, f"{name}[{key!r}]")
    elif isinstance(nest, (list, tuple)):
        for index, value in enumerate(nest):
            yield from named_leaves(value, f"{name}[{index}]")
    elif nest is not None:
        yield name, nest


def map_leaves(function: Callable[[Any], Any], nest: Nest) -> Nest:
    """Return a nest of the same structure with ``function`` of each array; lists become tuples.

    Keras hands tuples to a model too, also where the script gave lists to ``fit``.
    """
    if isinstance(nest, Mapping):
        return dict_like(nest, {key: map_leaves(function, value) for key, value in nest.items()})
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(map_leaves(function, value) for value in nest))
    if isinstance(nest, (list, tuple)):
        return tuple(map_leaves(function, value) for value in nest)
    return None if nest is None else function(nest)


def dict_like(nest: Mapping[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """Return ``items`` as an OrderedDict if ``nest`` is one.

    Keras flattens an OrderedDict in its own order, and any other dict in the order of its sorted
    keys.  So a model of several inputs gets them in another order.
    """
    return OrderedDict(items) if isinstance(nest, OrderedDict) else items


def pack(structure: Nest, arrays: Iterator[Any]) -> Nest:
    """Return the next arrays in the structure of another nest."""
    return map_leaves(lambda _: next(arrays), structure)


def structure_key(nest: Nest) -> Hashable:
    """Return structure, shapes and dtypes of a nest, to be compared or looked up."""
    return tuple((name, leaf.shape, leaf.dtype) for name, leaf in named_leaves(nest))


def kind_key(nest: Nest) -> Hashable:
    """Return structure, ranks and dtypes of a nest, but not its sizes."""
    return tuple((name, leaf.ndim, leaf.dtype) for name, leaf in named_leaves(nest))


def is_nest_of_arrays(value: object) -> bool:
    """Return whether ``value`` is a dict, or a list or tuple with arrays at any depth.

    A list of numbers, or of lists of numbers, is one array.
    """
    if isinstance(value, Mapping):
        return True
    if not isinstance(value, (list, tuple)):
        return False
    return any(hasattr(item, "shape") or is_nest_of_arrays(item) for item in value)
