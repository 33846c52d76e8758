"""The custom replica of the examples, one sample of which a worker never comes to the end of.

The mistake happens on as many workers as asked for, and then no more.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np

from examples import flags_of_workload, load, train
from holdfast.runtime.model.replica import Microbatch

example = load("02_custom_replica")


def loop_for_ever() -> None:
    """Compute in Python, which gives the interpreter's lock to other threads now and then."""
    while True:
        pass


def match_for_ever() -> None:
    """Call C code that keeps the interpreter's lock."""
    re.match(r"(a+)+$", "a" * 60 + "b")


def stop_for_ever() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def crash_at_once() -> None:
    print("about to read memory that is not there", file=sys.stderr)
    ctypes.string_at(0)


MISTAKES = {
    "loop": loop_for_ever,
    "match": match_for_ever,
    "stop": stop_for_ever,
    "crash": crash_at_once,
}


class Mistaken(example.SoftmaxRegression):  # type: ignore[misc,name-defined]
    """Cannot take the sample whose first feature is that of ``poison``."""

    def __init__(self, features: int, poison: float) -> None:
        super().__init__(features, 10)
        self._poison = poison
        self._applied = 0

    def apply(self, total: np.ndarray, samples: int) -> None:
        super().apply(total, samples)
        self._applied += 1

    def contribute(self, batch: Microbatch, out: np.ndarray) -> None:
        has_happened = (options.happened / "0").exists()
        is_old_enough = self._applied >= options.after or has_happened
        if is_old_enough and self._poison in batch.x[:, 0] and may_happen():
            MISTAKES[options.mistake]()
        super().contribute(batch, out)


def may_happen() -> bool:
    """Return whether the mistake has not happened as often as it should; count it."""
    for number in range(options.times):
        try:
            os.close(os.open(options.happened / str(number), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return True
    return False


parser = flags_of_workload()
parser.add_argument("--mistake", choices=MISTAKES, required=True)
parser.add_argument("--after", type=int, default=5, help="updates that go well before")
parser.add_argument("--poison", type=int, default=100, help="the sample that is fatal")
parser.add_argument("--times", type=int, default=1)
parser.add_argument("--happened", type=Path, required=True)
options = parser.parse_args()

data = example.clusters(options.samples, options.features, 10)
poison = float(data.read(np.array([options.poison]))[0][0, 0])
result = train(example, lambda: Mistaken(options.features, poison), options)
