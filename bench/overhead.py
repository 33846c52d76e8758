"""What fault tolerance adds to a step of 20 ms, against the same loop on bare mpi4py.

    python bench/overhead.py [--rounds 7] [--steps 150]

Two workers compute for exactly 20 ms (they spin, so that noise of the machine is not
taken for overhead), sum a small vector and apply it.  holdfast's loop adds the
heartbeat, the proof of samples, the vote and the journal.  Jobs of the two kinds take
turns; of each job counts the median step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from pathlib import Path

import harness
import numpy as np

from holdfast.runtime import ArrayData, Trainer
from holdfast.runtime.data import Array
from holdfast.runtime.replica import ContributionShape, Microbatch
from holdfast.runtime.testing import JobRequest

WORKERS = 2
COMPUTE_S = 0.020
FLOATS = 1000
SAMPLES, BATCH = 6400, 64
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
        ours.append(statistics.median(_holdfast_steps(options.steps)))
        bare.append(statistics.median(_bare_steps(options.steps)))
    ratio = harness.Spread.of(harness.ratios(ours, bare))
    print(
        f"{WORKERS} workers: {harness.Spread.of([1e3 * s for s in ours]).text(3)} ms / "
        f"{harness.Spread.of([1e3 * s for s in bare]).text(3)} ms = {ratio.text(4)}; "
        f"bound {BOUND}: {harness.verdict(holds=ratio.median <= BOUND)}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _holdfast_steps(steps: int) -> list[float]:
    """Return the seconds between the journal's records of applied steps."""
    with harness.private_directory() as directory:
        request = JobRequest(
            script=Path(__file__),
            run_dir=directory / "run",
            workers=WORKERS,
            microbatches=WORKERS,
            argv=("--as-worker", "--steps", str(steps)),
            options=("--threads", "1", "--preload", "numpy"),
        )
        journal = harness.run_job(request)
    return _differences([record["now"] for record in journal if record["event"] == "step"])


def _bare_steps(steps: int) -> list[float]:
    moments = harness.run_ranks(WORKERS, ["--as-rank", "--steps", str(steps)])
    return _differences(moments)


def _differences(moments: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(moments)]


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

    @property
    def shape(self) -> ContributionShape:
        return ContributionShape(gradient=FLOATS, metrics=1)

    def contribute(self, batch: Microbatch, out: Array) -> None:
        compute(batch.x, out)

    def apply(self, total: Array, samples: int) -> None:
        self._weights -= total[:FLOATS] * np.float32(0.1 / samples)

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
    data = ArrayData(*samples())
    Trainer(BusyReplica, data, global_batch=BATCH, epochs=epochs, save_every=10**9).run()


def _be_rank(steps: int) -> None:
    """Be a rank of the bare loop."""
    import mpi4py

    mpi4py.rc.finalize = False
    from mpi4py import MPI

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
