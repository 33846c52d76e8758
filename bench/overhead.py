"""What fault tolerance adds to a step of 20 ms.

    python bench/overhead.py [--rounds 7] [--steps 150]

Two workers compute for exactly 20 ms (they spin, so that noise of the machine is not
taken for overhead), sum a small vector and apply it.  Three kinds of jobs take turns,
and of each job counts the median step:

* holdfast;
* holdfast's loop without vote and journal: what is left adds the exact sum, the sample
  order and the proof of samples to the bare loop;
* the same computation in a bare mpi4py loop.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from pathlib import Path

import harness
import numpy as np

from holdfast.runtime import ArrayData, Trainer
from holdfast.runtime.data import Array
from holdfast.runtime.mpi_communicator import MpiCommunicator, join_world
from holdfast.runtime.records import LoopRecords
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
        _train(options.steps, is_guarded=not options.unguarded)
        return
    if options.as_rank:
        _be_rank(options.steps)
    harness.print_heading("fault tolerance in a step of 20 ms")
    medians: dict[str, list[float]] = {"holdfast": [], "unguarded": [], "bare": []}
    for _ in range(options.rounds):
        medians["holdfast"].append(_holdfast_ms(options.steps))
        medians["unguarded"].append(_holdfast_ms(options.steps, "--unguarded"))
        medians["bare"].append(_bare_ms(options.steps))
    print(f"vote and journal: {_describe(medians, 'holdfast', 'unguarded')}")
    print(f"the whole loop: {_describe(medians, 'holdfast', 'bare')}")


def _describe(medians: dict[str, list[float]], ours: str, peer: str) -> str:
    ratio = harness.Spread.of(harness.ratios(medians[ours], medians[peer]))
    return (
        f"{ours} {harness.Spread.of(medians[ours]).text(3)} ms / "
        f"{peer} {harness.Spread.of(medians[peer]).text(3)} ms = {ratio.text(4)}; "
        f"bound {BOUND}: {harness.verdict(holds=ratio.median <= BOUND)}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--unguarded", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _holdfast_ms(steps: int, *flags: str) -> float:
    with harness.private_directory() as directory:
        result = directory / "result.json"
        request = JobRequest(
            script=Path(__file__),
            run_dir=directory / "run",
            workers=WORKERS,
            microbatches=WORKERS,
            argv=("--as-worker", "--steps", str(steps), *flags),
            options=("--threads", "1", "--preload", "numpy"),
            environment={harness.RESULT_VARIABLE: str(result)},
        )
        harness.run_job(request)
        return _median_ms(json.loads(result.read_text(encoding="utf-8")))


def _bare_ms(steps: int) -> float:
    return _median_ms(harness.run_ranks(WORKERS, ["--as-rank", "--steps", str(steps)]))


def _median_ms(moments: list[float]) -> float:
    """Return the median time between two steps."""
    return 1000 * statistics.median(b - a for a, b in itertools.pairwise(moments))


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

    def __init__(self, guard: Guard) -> None:
        self._weights = np.zeros(FLOATS, np.float32)
        self._guard = guard
        self.moments: list[float] = []

    @property
    def shape(self) -> ContributionShape:
        return ContributionShape(gradient=FLOATS, metrics=1)

    def contribute(self, batch: Microbatch, out: Array) -> None:
        compute(batch.x, out)

    def apply(self, total: Array, samples: int) -> None:
        self._weights -= total[:FLOATS] * np.float32(0.1 / samples)
        self.moments.append(time.perf_counter())
        self._guard.stepped(len(self.moments))

    def evaluate(self, batch: Microbatch, out: Array) -> None:
        out[:] = 0

    def results(self, sums: Array, samples: int) -> dict[str, float]:
        return {"loss": float(sums[0]) / samples}

    def state(self) -> dict[str, Array]:
        return {"weights": self._weights}

    def load(self, state: dict[str, Array]) -> None:
        self._weights[...] = state["weights"]


class Guard:
    """Takes vote and journal out of the loop while it is measured, if it is told to.

    Every worker does so for the same steps, and nobody dies: all would vote alike.
    """

    def __init__(self, steps: int, *, is_on: bool) -> None:
        self._steps = steps
        self._is_on = is_on
        self._agree, self._stepped = MpiCommunicator.agree, LoopRecords.stepped

    def stepped(self, count: int) -> None:
        """Take the guard off after the first step, and put it back before the end."""
        if self._is_on or count not in (1, self._steps):
            return
        is_off = count == 1
        vote = _vote_alone if is_off else self._agree
        record = _record_nothing if is_off else self._stepped
        setattr(MpiCommunicator, "agree", vote)  # noqa: B010  (a method cannot be assigned)
        setattr(LoopRecords, "stepped", record)  # noqa: B010


def _vote_alone(communicator: MpiCommunicator, flags: int) -> int:
    return flags


def _record_nothing(records: LoopRecords, *_: object) -> None:
    pass


def _train(steps: int, *, is_guarded: bool) -> None:
    """Be a worker of a holdfast job."""
    epochs = -(-steps // (SAMPLES // BATCH))
    replica = BusyReplica(Guard(steps, is_on=is_guarded))
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
