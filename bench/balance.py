"""What ``--balance`` gains where one worker of four is half as fast, or one host of two.

    python bench/balance.py [--hosts] [--rounds 5] [--steps 100] [--compute-ms 25]
                            [--microbatches 16]

Each microbatch takes its worker that long, and the last worker twice as long.  With ``--hosts`` two
hosts have two workers each, and both of the second host are as slow.  They sleep, so that
the machine's own noise is not measured.  Jobs with ``--balance on`` and ``off`` take turns.  A
job's speed is the median of its steps from the middle on.  The bytes must be equal.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import time
from pathlib import Path

import harness
import numpy as np
from cluster import Cluster
from host_jobs import HostJob

from holdfast import ArrayData, ContributionShape, Microbatch, Trainer
from holdfast.testing import JobRequest, RunningJob, start_job

WORKERS, BATCH, SAMPLES, FLOATS = 4, 64, 6400, 1 << 16
SLOWER = 2.0
BOUND = 1.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--compute-ms", type=float, default=25.0)
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--hosts", action="store_true", help="needs root")
    parser.add_argument("--slow", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.slow is not None:
        _train(options)
        return
    slow = "one of 2 hosts" if options.hosts else f"one of {WORKERS} workers"
    harness.print_heading(f"{slow} at half speed")
    speeds: dict[str, list[float]] = {"on": [], "off": []}
    ends: set[str | None] = set()
    for _ in range(options.rounds):
        for balance, found in speeds.items():
            samples_per_s, sha256, said = _measure(options, balance)
            found.append(samples_per_s)
            ends.add(sha256)
            print(f"  {balance}: {samples_per_s:.0f} samples/s{said}", flush=True)
    ratio = harness.Spread.of(harness.ratios(speeds["on"], speeds["off"]))
    holds = harness.verdict(holds=ratio.median >= BOUND and len(ends) == 1)
    on, off = (harness.Spread.of(speeds[balance]).text(0) for balance in ("on", "off"))
    print(f"on {on} / off {off} samples/s = {ratio.text()}; bound {BOUND}: {holds}")
    print(f"{'the same bytes' if len(ends) == 1 else f'OTHER BYTES: {ends}'} in all jobs")


def _measure(options: argparse.Namespace, balance: str) -> tuple[float, str | None, str]:
    """Return the samples a second of a job, the digest of its end, and what it has told."""
    with harness.private_directory() as directory:
        result = directory / "result.json"
        slow = 2 if options.hosts else 1
        argv = ("--slow", slow, "--steps", options.steps, "--compute-ms", options.compute_ms)
        request = JobRequest(
            script=Path(__file__),
            run_dir=directory / "run",
            workers=WORKERS,
            microbatches=options.microbatches,
            argv=tuple(map(str, argv)),
            options=("--threads", "1", "--preload", "numpy", "--balance", balance),
            environment={harness.RESULT_VARIABLE: str(result)},
        )
        running: RunningJob | HostJob
        with contextlib.ExitStack() as stack:
            if options.hosts:
                cluster = stack.enter_context(Cluster(directory, ("a", "b")))
                running = stack.enter_context(HostJob(cluster, request, "a:2,b:2"))
            else:
                running = stack.enter_context(start_job(request, timeout_s=harness.JOB_TIMEOUT_S))
            job = running.wait()
        if job.exit_code != 0:
            raise RuntimeError(f"the job ended with {job.exit_code}:\n{job.stderr}")
        moments: list[float] = json.loads(result.read_text(encoding="utf-8"))
    steps = [b - a for a, b in itertools.pairwise(moments[len(moments) // 2 :])]
    told = [f"; after step {each['step']}: {each['counts']}" for each in job.events("balanced")]
    return BATCH / statistics.median(steps), job.sha256, "".join(told)


class PacedReplica:
    """Adds up its samples, each microbatch in a time that its worker takes."""

    def __init__(self, seconds: float) -> None:
        self._weights = np.zeros(FLOATS, np.float32)
        self._seconds = seconds
        self.moments: list[float] = []

    @property
    def shape(self) -> ContributionShape:
        return ContributionShape(FLOATS, 0)

    def contribute(self, batch: Microbatch, out: np.ndarray) -> None:
        end = time.monotonic() + self._seconds
        np.multiply(self._weights, batch.x.mean(), out=out)
        out += batch.x.sum()
        time.sleep(max(0.0, end - time.monotonic()))

    def apply(self, total: np.ndarray, samples: int) -> None:
        self._weights -= np.float32(0.01 / samples) * total
        self.moments.append(time.monotonic())

    def evaluate(self, batch: Microbatch, out: np.ndarray) -> None:
        """Measure nothing."""

    def results(self, sums: np.ndarray, samples: int) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, np.ndarray]:
        return {"weights": self._weights}

    def load(self, state: dict[str, np.ndarray]) -> None:
        self._weights[...] = state["weights"]


def _train(options: argparse.Namespace) -> None:
    """Be a worker of a holdfast job."""
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    is_slow = rank >= WORKERS - options.slow
    replica = PacedReplica(options.compute_ms / 1000 * (SLOWER if is_slow else 1.0))
    x = np.random.default_rng(0).normal(size=(SAMPLES, 8)).astype(np.float32)
    epochs = -(-options.steps // (SAMPLES // BATCH))
    Trainer(replica, ArrayData(x, x[:, 0]), global_batch=BATCH, epochs=epochs).run()
    if rank == 0:
        harness.give_result(replica.moments)


if __name__ == "__main__":
    main()
