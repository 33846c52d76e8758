"""A script that makes the mistake that it is told to make."""

from __future__ import annotations

import sys

import numpy as np

from holdfast import ArrayData, Trainer
from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.model.replica import ContributionShape, Microbatch


class Mean:
    """Learns the mean of the inputs; of -1 and -2 its loss is infinite, and it raises."""

    shape = ContributionShape(gradient=1, metrics=1)

    def __init__(self) -> None:
        self._mean = np.zeros(1, np.float32)

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        if -2 in batch.x:
            raise ValueError("this sample is bad")
        out[:1] = (self._mean - batch.x).sum()
        self.evaluate(batch, out[1:])

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        out[0] = np.inf if -1 in batch.x else np.square(self._mean - batch.x).sum()

    def apply(self, total: FloatVector, samples: int) -> None:
        self._mean -= 0.1 * total[:1] / samples

    def results(self, sums: np.ndarray, samples: int) -> dict[str, float]:
        return {"loss": float(sums[0]) / samples}

    def state(self) -> Tensors:
        return {"mean": self._mean}

    def load(self, state: Tensors) -> None:
        self._mean[...] = state["mean"]


def train(seventh: float = 1.0) -> None:
    x = np.ones((20, 1), np.float32)
    x[7] = seventh
    data = ArrayData(x, np.zeros(20, np.float32))
    Trainer(Mean, data, global_batch=5, epochs=2, save_every=1).run()


WRONG = {"not finite": -1.0, "bad sample": -2.0}


def main(mistake: str) -> None:
    if mistake == "raise":
        raise ValueError("this script has\na mistake")
    if mistake == "raise late":
        train()
        raise ValueError("this script has\na mistake")
    train(WRONG[mistake])


if __name__ == "__main__":
    main(sys.argv[1])
