"""The custom replica of the examples, each step of which takes a while at least.

So a job lasts long enough that something can be done to it on the way, on any machine. At a
gate all workers wait for the test, after so many updates of their own, at gate 0 before they
restore anything.  They may also hang in the gradient of the update that follows.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import numpy as np

from examples import flags_of_workload, load, train
from holdfast import Microbatch

example = load("02_custom_replica")
_HOST = socket.gethostname()


class Paced(example.SoftmaxRegression):  # type: ignore[misc,name-defined]
    """Takes its time for an update; its bytes are those of the example."""

    def __init__(self, features: int, pause_s: float, trace: Path | None) -> None:
        super().__init__(features, 10)
        self._pause_s = pause_s
        self._trace = trace
        self._applied = 0

    def contribute(self, batch: Microbatch, out: np.ndarray) -> None:
        if self._applied == options.hang_after:
            wait_for(options.gates / "gradient")
        super().contribute(batch, out)

    def apply(self, total: np.ndarray, samples: int) -> None:
        super().apply(total, samples)
        self._applied += 1
        if self._applied in options.gate_steps:
            wait_for(options.gates / str(self._applied))
        if self._trace is not None:
            with self._trace.open("a") as trace:
                trace.write(f"{time.monotonic()} {_HOST} {os.getpid()}\n")
        time.sleep(self._pause_s)


def wait_for(path: Path) -> None:
    """Return as soon as the test has made ``path``."""
    while not path.exists():
        time.sleep(0.01)


parser = flags_of_workload("pause-ms")
parser.add_argument("--linger", type=Path, help="do not end before this file exists")
parser.add_argument("--gates", type=Path, help="where a file for each gate opens it")
parser.add_argument("--gate-steps", type=int, nargs="*", default=(), help="the gates' updates")
parser.add_argument("--hang-after", type=int, help="the update after which the gate `gradient` is")
parser.add_argument("--trace", type=Path, help="gets moment, host and process of each update")
options = parser.parse_args()

if 0 in options.gate_steps:
    wait_for(options.gates / "0")
result = train(
    example, lambda: Paced(options.features, options.pause_ms / 1e3, options.trace), options
)
if result.is_first and options.linger:
    wait_for(options.linger)
if result.is_first:
    print(f"written by the first worker: {result.sha256}")
