"""What fault tolerance adds to a step of 20 ms: the whole loop against one on bare mpi4py.

    python bench/overhead.py [--rounds 7] [--steps 150]

Two workers compute for exactly 20 ms (they spin, so that noise of the machine is not
taken for overhead), sum a small vector and apply it.  A holdfast job and the same
computation in a bare mpi4py loop take turns, and of each counts the median step, as
the mean of ten in a row.  Heartbeat, vote and journal are in holdfast's steps, and so
are the exact sum, the sample order and the proof of samples.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import harness
import numpy as np

from holdfast.runtime import ArrayData, Trainer
from holdfast.runtime.data import Array
from holdfast.runtime.mpi_communicator import join_world
from holdfast.runtime.replica import ContributionShape, Microbatch
from holdfast.runtime.testing import JobRequest

WORKERS = 2
COMPUTE_S = 0.020
FLOATS = 1000
SAMPLES, BATCH = 6400, 64
RUN_STEPS = 10
BOUND = 1.01


def main() -> None:
    options = _options()
    if options.as_worker:
        _train(options.steps)
        return
    if options.as_rank:
        _be_rank(options.steps)
    harness.print_heading("fault tolerance in a step of 20 ms")
    ours, bare = [], []
    for _ in range(options.rounds):
        ours.append(_holdfast_ms(options.steps))
        bare.append(_bare_ms(options.steps))
    ratio = harness.Spread.of(harness.ratios(ours, bare))
    print(
        f"holdfast {harness.Spread.of(ours).text(3)} ms / bare {harness.Spread.of(bare).text(3)} ms"
        f" = {ratio.text(4)}; bound {BOUND}: {harness.verdict(holds=ratio.median <= BOUND)}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _holdfast_ms(steps: int) -> float:
    with harness.private_directory() as directory:
        result = directory / "result.json"
        request = JobRequest(
            script=Path(__file__),
            run_dir=directory / "run",
            workers=WORKERS,
            microbatches=WORKERS,
            argv=("--as-worker", "--steps", str(steps)),
            options=("--threads", "1", "--preload", "numpy"),
            environment={harness.RESULT_VARIABLE: str(result)},
        )
        harness.run_job(request)
        return _median_ms(json.loads(result.read_text(encoding="utf-8")))


def _bare_ms(steps: int) -> float:
    return _median_ms(harness.run_ranks(WORKERS, ["--as-rank", "--steps", str(steps)]))


def _median_ms(moments: list[float]) -> float:
    """Return the median time of a step, in runs of ten: the journal writes some together."""
    runs = zip(moments, moments[RUN_STEPS:], strict=False)
    return 1000 * statistics.median(after - before for before, after in runs) / RUN_STEPS


def samples() -> tuple[Array, Array]:
    """Return inputs and targets of the samples."""
    random = np.random.default_rng(1)
    return random.standard_normal((SAMPLES, 8), np.float32), np.zeros(SAMPLES, np.int64)


def compute(x: Array, out: Array) -> None:
    """Be busy for 20 ms, and leave a vector."""
    end = time.perf_counter() + COMPUTE_S
    while time.perf_counter() < end:
        pass
    out[:] = x[0, 0]


class BusyReplica:
    """Weights that follow what the busy computation leaves."""

    def __init__(self) -> None:
        self._weights = np.zeros(FLOATS, np.float32)
        self.moments: list[float] = []

    @property
    def shape(self) -> ContributionShape:
        return ContributionShape(gradient=FLOATS, metrics=1)

    def contribute(self, batch: Microbatch, out: Array) -> None:
        compute(batch.x, out)

    def apply(self, total: Array, samples: int) -> None:
        self._weights -= total[:FLOATS] * np.float32(0.1 / samples)
        self.moments.append(time.perf_counter())

    def evaluate(self, batch: Microbatch, out: Array) -> None:
        out[:] = 0

    def results(self, sums: Array, samples: int) -> dict[str, float]:
        return {"loss": float(sums[0]) / samples}

    def state(self) -> dict[str, Array]:
        return {"weights": self._weights}

    def load(self, state: dict[str, Array]) -> None:
        self._weights[...] = state["weights"]


def _train(steps: int) -> None:
    """Be a worker of a holdfast job."""
    epochs = -(-steps // (SAMPLES // BATCH))
    replica = BusyReplica()
    data = ArrayData(*samples())
    Trainer(replica, data, global_batch=BATCH, epochs=epochs, save_every=10**9).run()
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        harness.give_result(replica.moments[:steps])


def _be_rank(steps: int) -> None:
    """Be a rank of the bare loop."""
    from mpi4py import MPI

    join_world(shrinkable=True)
    comm = MPI.COMM_WORLD
    x, _ = samples()
    weights = np.zeros(FLOATS, np.float32)
    gradient, total = np.empty_like(weights), np.empty_like(weights)
    order = np.random.default_rng(0).permutation(SAMPLES)
    share = BATCH // comm.size
    moments = []
    for step in range(steps):
        start = step * BATCH % SAMPLES + comm.rank * share
        compute(x[order[start : start + share]], gradient)
        comm.Allreduce(gradient, total)
        weights -= total * np.float32(0.1 / BATCH)
        moments.append(time.perf_counter())
    if comm.rank == 0:
        harness.give_result(moments)
    comm.Barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
