"""The custom replica of the examples; in one worker a bit of the weights flips once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from examples import flags_of_workload, load, train

example = load("02_custom_replica")


class Flipping(example.SoftmaxRegression):  # type: ignore[misc,name-defined]
    """The first worker that makes the marker, after its n-th update, has bad memory."""

    def __init__(self, features: int, classes: int, flip_after: int, marker: Path) -> None:
        super().__init__(features, classes)
        self._left = flip_after
        self._marker = marker

    def apply(self, total: np.ndarray, samples: int) -> None:
        super().apply(total, samples)
        self._left -= 1
        if self._left == 0 and self._is_chosen():
            self._weights.view(np.uint32)[3, 2] ^= 1 << 20

    def _is_chosen(self) -> bool:
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


parser = flags_of_workload()
parser.add_argument("--flip-after", type=int, required=True)
parser.add_argument("--marker", type=Path, required=True)
options = parser.parse_args()

train(example, lambda: Flipping(options.features, 10, options.flip_after, options.marker), options)
