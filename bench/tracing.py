"""What ``--trace`` adds to a short step.

    python bench/tracing.py [--rounds 7] [--steps 1500] [--compute-ms 2]

Two workers compute for exactly that long, in four microbatches, sum a small vector and apply it.
They spin, so that noise of the machine is not taken for overhead.  Jobs with and without
``--trace`` take turns.  For each the median step counts, as the mean of ten in a row.  Before that
stands the time of one change of activity, alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import timeit
from pathlib import Path

import harness
import overhead

from holdfast import ArrayData, Trainer
from holdfast.runtime.model.replica import Array, Microbatch
from holdfast.runtime.system.timeline import Activity
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.testing import JobRequest

WORKERS, MICROBATCHES = 2, 4
REPEATS, CHANGES = 400, 1000
BOUND = 1.01


def main() -> None:
    options = _options()
    if options.as_worker:
        _train(options.steps, options.compute_ms / 1000)
        return
    harness.print_heading(f"--trace in a step of {options.compute_ms:g} ms")
    plain_ns, traced_ns = _change_ns(), _change_ns(is_traced=True)
    print(f"a change of activity: {plain_ns:.0f} ns, traced {traced_ns:.0f} ns")
    medians: dict[str, list[float]] = {"plain": [], "traced": []}
    for _ in range(options.rounds):
        medians["plain"].append(_job_ms(options))
        medians["traced"].append(_job_ms(options, "--trace"))
    ratio = harness.Spread.of(harness.ratios(medians["traced"], medians["plain"]))
    holds = harness.verdict(holds=ratio.median <= BOUND)
    plain, traced = (harness.Spread.of(medians[kind]).text(3) for kind in ("plain", "traced"))
    print(f"traced {traced} ms / plain {plain} ms = {ratio.text(4)}; bound {BOUND}: {holds}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--compute-ms", type=float, default=2.0)
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _change_ns(*, is_traced: bool = False) -> float:
    status = WorkerStatus.create()
    if is_traced:
        status.trace()

    def change() -> None:
        for _ in range(CHANGES // 2):
            status.enter(Activity.READ)
            status.enter(Activity.COMPUTE)

    fastest_s: float = min(timeit.repeat(change, number=1, repeat=REPEATS))
    return 1e9 * fastest_s / CHANGES


def _job_ms(options: argparse.Namespace, *flags: str) -> float:
    with harness.private_directory() as directory:
        result = directory / "result.json"
        argv = ("--as-worker", "--steps", options.steps, "--compute-ms", options.compute_ms)
        request = JobRequest(
            script=Path(__file__),
            run_dir=directory / "run",
            workers=WORKERS,
            microbatches=MICROBATCHES,
            argv=tuple(map(str, argv)),
            options=("--threads", "1", "--preload", "numpy", *flags),
            environment={harness.RESULT_VARIABLE: str(result)},
        )
        harness.run_job(request)
        moments: list[float] = json.loads(result.read_text(encoding="utf-8"))
    runs = zip(moments, moments[overhead.RUN_STEPS :], strict=False)
    return 1000 * statistics.median(b - a for a, b in runs) / overhead.RUN_STEPS


class BusyReplica(overhead.BusyReplica):
    """Computes a part of the time for each microbatch."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def contribute(self, batch: Microbatch, out: Array) -> None:
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass
        out[:] = batch.x[0, 0] + batch.y[0]


def _train(steps: int, compute_s: float) -> None:
    """Be a worker of a holdfast job."""
    epochs = -(-steps // (overhead.SAMPLES // overhead.BATCH))
    replica = BusyReplica(compute_s * WORKERS / MICROBATCHES)
    data = ArrayData(*overhead.samples())
    batch = overhead.BATCH
    Trainer(replica, data, global_batch=batch, epochs=epochs, save_every=10**9).run()
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        harness.give_result(replica.moments[:steps])


if __name__ == "__main__":
    main()
