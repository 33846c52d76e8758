"""Train without a framework: softmax regression whose replica is written by hand.

    holdfast run -n 4 examples/02_custom_replica.py
    holdfast run -n 4 --fresh --inject "kill worker=3 step=9" examples/02_custom_replica.py

Any model that can turn a microbatch into sums over its samples can be trained.
"""

from __future__ import annotations

import argparse

import numpy as np

from holdfast import ArrayData, ContributionShape, Microbatch, Trainer

LEARNING_RATE = np.float32(0.1)
MOMENTUM = np.float32(0.9)


class SoftmaxRegression:
    """Weights of shape (features + 1, classes), the last row the bias; SGD with momentum.

    NumPy computes such small matrix products with one thread.  So their bits depend only on
    the shape of a microbatch.
    """

    def __init__(self, features: int, classes: int) -> None:
        self._weights = np.zeros((features + 1, classes), np.float32)
        self._velocity = np.zeros_like(self._weights)

    @property
    def shape(self) -> ContributionShape:
        return ContributionShape(gradient=self._weights.size, metrics=2)

    def contribute(self, batch: Microbatch, out: np.ndarray) -> None:
        inputs = _with_bias(batch.x)
        probabilities = self._predict(inputs)
        self._measure(probabilities, batch.y, out[self._weights.size :])
        probabilities[np.arange(batch.samples), batch.y] -= 1
        gradient = out[: self._weights.size].reshape(self._weights.shape)
        np.matmul(inputs.T, probabilities, out=gradient)

    def apply(self, total: np.ndarray, samples: int) -> None:
        gradient = total[: self._weights.size].reshape(self._weights.shape)
        self._velocity *= MOMENTUM
        self._velocity -= LEARNING_RATE * gradient / np.float32(samples)
        self._weights += self._velocity

    def evaluate(self, batch: Microbatch, out: np.ndarray) -> None:
        self._measure(self._predict(_with_bias(batch.x)), batch.y, out)

    def results(self, sums: np.ndarray, samples: int) -> dict[str, float]:
        return {"loss": float(sums[0]) / samples, "accuracy": float(sums[1]) / samples}

    def state(self) -> dict[str, np.ndarray]:
        return {"weights": self._weights, "velocity": self._velocity}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self._weights[...] = state["weights"]
        self._velocity[...] = state["velocity"]

    def _predict(self, inputs: np.ndarray) -> np.ndarray:
        logits = inputs @ self._weights
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        return logits / logits.sum(axis=1, keepdims=True)

    def _measure(self, probabilities: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
        out[0] = -np.log(probabilities[np.arange(len(y)), y]).sum()
        out[1] = np.count_nonzero(probabilities.argmax(axis=1) == y)


def _with_bias(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.ones((len(x), 1), x.dtype)], axis=1)


def clusters(samples: int, features: int, classes: int) -> ArrayData:
    """Return points around one random center for each class."""
    random = np.random.default_rng(2003)
    centers = random.normal(size=(classes, features))
    y = np.arange(samples) % classes
    x = centers[y] + random.normal(size=(samples, features))
    return ArrayData(x.astype(np.float32), y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--global-batch", type=int, default=120)
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--features", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--save-every", type=int, default=25, metavar="STEPS")
    options = parser.parse_args()

    trainer = Trainer(
        lambda: SoftmaxRegression(options.features, options.classes),
        clusters(options.samples, options.features, options.classes),
        global_batch=options.global_batch,
        epochs=options.epochs,
        validation=clusters(10 * options.classes, options.features, options.classes),
        save_every=options.save_every,
    )
    result = trainer.run()
    if result.is_first:
        print(f"step {result.step} {result.metrics} sha256 {result.sha256}")


if __name__ == "__main__":
    main()
