"""What fault tolerance adds to a step of 20 ms.

    python bench/overhead.py [--rounds 7] [--steps 150]

Two workers compute for exactly 20 ms, sum a small vector and apply it.  They spin, so that
noise of the machine is not taken for overhead.  Three loops take turns.  For each the
median step counts, as the mean of ten in a row:

* bare: mpi4py and nothing else;
* guarded: the same loop with holdfast's heartbeat, vote and journal;
* holdfast: a whole job, with the exact sum, the sample order and the proof of samples.
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

from holdfast import ArrayData, Trainer
from holdfast.recovery.ledger import Cursor, Ledger
from holdfast.recovery.step import Bit, ballot, outcome
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.exchange.mpi_communicator import MpiCommunicator, join_world
from holdfast.runtime.model.replica import Array, ContributionShape, Microbatch
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.worker_status import Pulse, WorkerStatus, pulse_interval_s
from holdfast.runtime.worker.context import WorkerContext, injector_of
from holdfast.runtime.worker.records import LoopRecords
from holdfast.testing import JobRequest

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
        _be_rank(options.steps, is_guarded=options.guarded)
    harness.print_heading("fault tolerance in a step of 20 ms")
    medians: dict[str, list[float]] = {"bare": [], "guarded": [], "holdfast": []}
    for _ in range(options.rounds):
        medians["bare"].append(_rank_ms(options.steps))
        medians["guarded"].append(_rank_ms(options.steps, "--guarded"))
        medians["holdfast"].append(_holdfast_ms(options.steps))
    guarded = harness.ratios(medians["guarded"], medians["bare"])
    holds = harness.verdict(holds=harness.Spread.of(guarded).median <= BOUND)
    print(f"heartbeat, vote, journal: {_describe(medians, 'guarded')}; bound {BOUND}: {holds}")
    print(f"the whole loop: {_describe(medians, 'holdfast')}")


def _describe(medians: dict[str, list[float]], ours: str) -> str:
    ratio = harness.Spread.of(harness.ratios(medians[ours], medians["bare"]))
    return (
        f"{harness.Spread.of(medians[ours]).text(3)} ms / "
        f"{harness.Spread.of(medians['bare']).text(3)} ms = {ratio.text(4)}"
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--as-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--guarded", action="store_true", help=argparse.SUPPRESS)
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


def _rank_ms(steps: int, *flags: str) -> float:
    return _median_ms(harness.run_ranks(WORKERS, ["--as-rank", "--steps", str(steps), *flags]))


def _median_ms(moments: list[float]) -> float:
    """Return the median time of a step, in runs of ten: the journal writes some together."""
    runs = zip(moments, moments[RUN_STEPS:], strict=False)
    return 1000 * statistics.median(after - before for before, after in runs) / RUN_STEPS


def samples() -> tuple[Array, Array]:
    """Return inputs and targets of the samples."""
    random = np.random.default_rng(1)
    return random.standard_normal((SAMPLES, 8), np.float32), np.zeros(SAMPLES, np.int64)


def compute(x: Array, y: Array, out: Array) -> None:
    """Be busy for 20 ms, and leave a vector."""
    end = time.perf_counter() + COMPUTE_S
    while time.perf_counter() < end:
        pass
    out[:] = x[0, 0] + y[0]


class BusyReplica:
    """Weights that follow what the busy computation leaves."""

    def __init__(self) -> None:
        self._weights = np.zeros(FLOATS, np.float32)
        self.moments: list[float] = []

    @property
    def shape(self) -> ContributionShape:
        return ContributionShape(gradient=FLOATS, metrics=1)

    def contribute(self, batch: Microbatch, out: Array) -> None:
        compute(batch.x, batch.y, out)

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


class Guard:
    """Heartbeat, vote and journal for a loop that has none of them."""

    def __init__(self, communicator: MpiCommunicator, run_dir: Path) -> None:
        workers = tuple(WorkerId(rank) for rank in range(communicator.size))
        config = WorkerConfig(
            worker=workers[communicator.rank],
            generation=1,
            workers=workers,
            record=RunRecord("bench", FORMAT, 0.0, microbatches=len(workers), seed=0, threads=1),
            options=JobOptions(Path("bench"), run_dir, workers=len(workers)),
        )
        path = RunDirectory(run_dir).journal_path
        journal = Journal(path, run_id=config.record.run_id, source=f"worker {config.worker}")
        self._page = WorkerStatus.create()
        injector = injector_of(config, journal)
        context = WorkerContext(
            config, communicator, journal, self._page, injector, lambda *told: None, lambda _: {}
        )
        world = World(1, workers, len(workers))
        membership = Membership(config.worker, world, communicator, clock=time.monotonic)
        self._communicator = communicator
        self._records = LoopRecords(context, membership)
        self._pulse = Pulse(self._page, pulse_interval_s(config.options.heartbeat_timeout_s))
        self._pulse.start()

    def vote(self) -> None:
        """Agree that the step may be applied."""
        flags = ballot(is_finite=True, save=Bit(0))
        assert outcome(self._communicator.agree(flags)).is_yes

    def note(self, step: int) -> None:
        """Tell status and journal of an applied step."""
        self._page.commit(step)
        self._records.stepped(Cursor(step, 0, Ledger(0, 0), np.zeros(1)), 1, BATCH)

    def close(self) -> None:
        """End the heartbeat's thread."""
        self._pulse.stop()
        self._records.flush()


def _be_rank(steps: int, *, is_guarded: bool) -> None:
    """Be a rank of a loop on mpi4py."""
    from mpi4py import MPI

    communicator = join_world(shrinkable=True)
    run_dir = Path(os.environ[harness.RESULT_VARIABLE]).parent
    guard = Guard(communicator, run_dir) if is_guarded else None
    comm = MPI.COMM_WORLD
    x, y = samples()
    weights = np.zeros(FLOATS, np.float32)
    gradient, total = np.empty_like(weights), np.empty_like(weights)
    order = np.random.default_rng(0).permutation(SAMPLES)
    share = BATCH // comm.size
    moments = []
    for step in range(steps):
        start = step * BATCH % SAMPLES + comm.rank * share
        ids = order[start : start + share]
        compute(x[ids], y[ids], gradient)
        comm.Allreduce(gradient, total)
        if guard is not None:
            guard.vote()
        weights -= total * np.float32(0.1 / BATCH)
        if guard is not None:
            guard.note(step + 1)
        moments.append(time.perf_counter())
    if guard is not None:
        guard.close()
    if comm.rank == 0:
        harness.give_result(moments)
    comm.Barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
