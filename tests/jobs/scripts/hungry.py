"""The custom replica of the examples; one worker of the run keeps more memory at each step."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

from examples import flags_of_workload, load, train

example = load("02_custom_replica")


class Hungry(example.SoftmaxRegression):  # type: ignore[misc,name-defined]
    """Eats if no other worker of the run was first; its bytes are those of the example."""

    def __init__(self) -> None:
        super().__init__(options.features, 10)
        self._kept: list[bytes] = []
        self._steps = 0
        self._is_eater: bool | None = None

    def apply(self, total: np.ndarray, samples: int) -> None:
        super().apply(total, samples)
        time.sleep(options.pause_ms / 1e3)
        self._steps += 1
        if self._steps >= options.from_step and self._eats():
            self._kept.append(b"x" * (options.mib_a_step << 20))

    def _eats(self) -> bool:
        if self._is_eater is None:
            try:
                os.close(os.open(options.eater, os.O_CREAT | os.O_EXCL))
                self._is_eater = True
            except FileExistsError:
                self._is_eater = False
        return self._is_eater


parser = flags_of_workload("pause-ms", "from-step", "mib-a-step")
parser.add_argument("--eater", type=Path, required=True, help="made by the first one to eat")
options = parser.parse_args()

train(example, Hungry, options)
