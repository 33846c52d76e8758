"""What a value of a traced graph depends on: variables, and the data of the microbatch.

Looks at a graph of TensorFlow without importing TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.runtime.custom.turns import Read

_DATA = 1
"""The bit of everything that differs between microbatches."""


class GraphReads:
    """Dependencies of all values in a graph, as it stands when this is made.

    ``variables`` are numbered by the caller.  A mask has a bit for the data, and one for each
    operation that reads a variable.
    """

    def __init__(self, graph: Any, variables: Mapping[int, Any]) -> None:
        handles = {id(v.value.handle): number for number, v in variables.items()}
        captured = {id(inner.op): handles.get(id(outer)) for outer, inner in graph.captures}
        self._reads: list[Read] = []
        self._masks: dict[int, int] = {}
        self._handles: dict[int, int] = {}
        for position, operation in enumerate(graph.get_operations()):
            if id(operation) in captured:
                number = captured[id(operation)]
                if number is not None:
                    self._handles[id(operation)] = number
                self._masks[id(operation)] = 0
            elif operation.type == "Placeholder":
                self._masks[id(operation)] = _DATA
            else:
                self._masks[id(operation)] = self._mask_at(operation, position)

    def depends_on_data(self, tensor: Any) -> bool:
        """Return whether the value may differ between microbatches."""
        return bool(self._mask(tensor) & _DATA)

    def reads(self, *tensors: Any) -> tuple[Read, ...]:
        """Return the reads that the values depend on."""
        mask = 0
        for tensor in tensors:
            mask |= self._mask(tensor)
        mask >>= 1
        found = []
        for i, read in enumerate(self._reads):
            if mask >> i & 1:
                found.append(read)
        return tuple(found)

    def _mask_at(self, operation: Any, position: int) -> int:
        mask = 0
        for tensor in operation.inputs:
            number = self._handles.get(id(tensor.op))
            if number is None:
                mask |= self._masks.get(id(tensor.op), 0)
            else:
                mask |= 2 << len(self._reads)
                self._reads.append((number, position))
        return mask

    def _mask(self, tensor: Any) -> int:
        return self._masks.get(id(tensor.op), 0) if hasattr(tensor, "op") else 0
