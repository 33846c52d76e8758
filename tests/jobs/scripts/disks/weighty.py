"""The custom replica of the examples, with one large tensor, or many small ones, in its state."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from examples import flags_of_workload, load, train

example = load("02_custom_replica")


class Weighty(example.SoftmaxRegression):  # type: ignore[misc,name-defined]
    """Its ballast counts the steps, a part of it at each, so every byte depends on them."""

    def __init__(self) -> None:
        super().__init__(options.features, 10)
        self._steps = np.zeros(1, np.int64)
        self._table = np.zeros(options.state_mib << 20, np.uint8)
        self._small = {f"small/{i:06d}": np.full(3, i, np.int32) for i in range(options.tensors)}

    def apply(self, total: np.ndarray, samples: int) -> None:
        super().apply(total, samples)
        time.sleep(options.pause_ms / 1e3)
        self._steps += 1
        self._table[int(self._steps[0]) % 7 :: 4096] += 1
        for array in self._small.values():
            np.add(array, 1, out=array)

    def state(self) -> dict[str, np.ndarray]:
        ballast = {"steps": self._steps, "table": self._table, **self._small}
        return {**super().state(), **ballast}

    def load(self, state: dict[str, np.ndarray]) -> None:
        super().load(state)
        self._steps[...] = state["steps"]
        self._table[...] = state["table"]
        for name, array in self._small.items():
            array[...] = state[name]


parser = flags_of_workload()
for name in ("pause-ms", "state-mib", "tensors"):
    parser.add_argument(f"--{name}", type=int, default=0)
options = parser.parse_args()

train(example, Weighty, options)
