"""The scripts of the Keras suite: where the workers die, and how near plain Keras must come.

Each is an ordinary script under ``tests/keras_scripts``; none of them imports holdfast.  Under
plain Keras, on one worker, and on three workers of whom none lives through it, a script must
come to the same end.  On one and on three workers that means the same bytes.  Plain Keras sums
a batch in another order, so its numbers agree within a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "keras_scripts"


@dataclass(frozen=True, slots=True)
class Nearness:
    """How far numbers may lie from those of plain Keras.

    ``files`` are the endings of the files whose numbers are compared; a file with another
    ending must only be there.
    """

    relative: float
    absolute: float
    files: tuple[str, ...] = (".json", ".csv", ".npz", ".h5", ".keras")

    def __str__(self) -> str:
        return f"within {self.relative:g}"


ROUNDING = Nearness(1e-3, 1e-4)
"""Other orders of summing, over some twenty steps of an optimizer."""
TO_4_PLACES = Nearness(1e-3, 2e-3)
"""A script that writes its figures rounded."""
OVERFLOWS = Nearness(0.25, 0.1, files=(".json",))
"""A loss scale that is too large skips steps until it fits.  The gradient of a microbatch is larger
than that of the batch, whose parts cancel; so the scale may fall once more."""
REPEATED = Nearness(0.1, 0.1, files=(".json",))
"""An Embedding under an optimizer that squares gradients.  Keras on TensorFlow squares the part of
each occurrence of a word in a batch; the square of their sum is what other backends take."""
DRAWS = Nearness(0.25, 0.1, files=(".json",))
"""Noise, dropout or shuffles are drawn from the run's seed and the microbatch, not from Keras's
one stream: other draws, so only the curve of the losses is like that of plain Keras."""


@dataclass(frozen=True, slots=True)
class SuiteScript:
    """One script: worker 1 dies at ``death``, and all others at ``loss``, which are steps.

    A relaunch follows from the loss.  The step of the loss is in the middle of an epoch.
    """

    path: Path
    death: int
    loss: int
    nearness: Nearness = ROUNDING

    @property
    def name(self) -> str:
        """The script's name without its ending."""
        return self.path.stem

    @property
    def faults(self) -> tuple[str, ...]:
        """The deaths, as ``--inject`` takes them."""
        last = (f"kill worker={worker} step={self.loss}" for worker in (0, 2))
        return (f"kill worker=1 step={self.death}", *last)


def _script(name: str, death: int, loss: int, nearness: Nearness = ROUNDING) -> SuiteScript:
    return SuiteScript(SCRIPTS / f"{name}.py", death, loss, nearness)


_ALL = (
    _script("models/cnn", 2, 8),
    _script("models/transformer", 3, 10, REPEATED),
    _script("models/lstm_masks", 2, 6),
    _script("models/endpoint", 2, 9),
    _script("models/ctc", 2, 8),
    _script("models/class_weights", 3, 6),
    _script("models/sampling", 2, 8, DRAWS),
    _script("inputs/augmentation", 2, 8, DRAWS),
    _script("inputs/siamese", 2, 8),
    _script("inputs/dict_strings", 2, 9),
    # Full batches: Keras takes the loss of one output as a mean over batches, not over samples.
    _script("inputs/three_inputs", 2, 9),
    _script("inputs/segmentation", 2, 8),
    _script("inputs/windows", 4, 15),
    _script("inputs/hardest", 8, 14),
    _script("steps/gan", 2, 8, DRAWS),
    _script("steps/denoising", 2, 8, DRAWS),
    _script("steps/distillation", 2, 21),  # in the second of its three trainings
    _script("steps/fine_tuning", 3, 13),  # in the second of its two trainings
    _script("steps/mixed_precision", 2, 12, OVERFLOWS),
    _script("steps/accumulation", 2, 13),
    _script("callbacks/own_callback", 3, 18),
    _script("callbacks/stopping", 2, 11),
    _script("callbacks/busy_hooks", 2, 19),
    _script("callbacks/not_finite", 3, 13),
    _script("callbacks/own_resume", 2, 11),
    _script("callbacks/pruning", 2, 21),  # in the third of its trainings
    _script("callbacks/annealing", 2, 11),  # in the second of its two trainings
    _script("callbacks/reading_metrics", 2, 11, TO_4_PLACES),  # in the second of its two trainings
)

SUITE = {script.name: script for script in _ALL}
"""All scripts by their names."""
