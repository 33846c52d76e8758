"""Samples a second of holdfast against a bare mpi4py loop: four models, 2 workers of 1 thread.

    python bench/throughput.py [--rounds 25] [--models dnn cnn mlp transformer]

A holdfast job trains a Keras model.  Between blocks of its steps the same processes train
a second copy of the model in the bare loop (see ``bare``).  The blocks have equally many
steps on batches of the same size, so that noise of the machine hits all alike.  The bound
is held against the faster of the bare loop's two forms.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import numpy as np

from holdfast import ArrayData, Trainer
from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.model.replica import Array, ContributionShape, Microbatch, Replica
from holdfast.testing import JobRequest

WORKERS = 2
BOUND = 1.0
BARE_FORMS = ("joined", "in_place")
NAMES = ("dnn", "cnn", "mlp", "transformer")
BATCHES = 40
"""Steps of an epoch: enough that reading samples and ending epochs cost what they do."""


def main() -> None:
    options = _options()
    if options.as_worker:
        _train(options.as_worker, options.rounds)
        return
    harness.print_heading("samples/s, 2 workers of 1 thread, holdfast / bare mpi4py")
    for name in options.models:
        print(f"{name}: {_describe(_measure(name, options.rounds))}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--as-worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure(name: str, rounds: int) -> harness.Record:
    """Run the job of one model; return the samples a second of each round."""
    with harness.private_directory() as directory:
        result = directory / "result.json"
        request = JobRequest(
            script=Path(__file__),
            run_dir=directory / "run",
            workers=WORKERS,
            microbatches=WORKERS,
            argv=("--as-worker", name, "--rounds", str(rounds)),
            options=("--threads", "1"),
            environment={harness.RESULT_VARIABLE: str(result), "OMP_NUM_THREADS": "1"},
        )
        harness.run_job(request, timeout_s=harness.RANKS_TIMEOUT_S)
        found: harness.Record = json.loads(result.read_text(encoding="utf-8"))
        return found


def _describe(result: harness.Record) -> str:
    speeds, floats = result["speeds"], result["floats"]
    medians = {form: harness.Spread.of(speeds[form]).median for form in speeds}
    best = max(BARE_FORMS, key=lambda form: medians[form])
    ratio = harness.Spread.of(harness.ratios(speeds["holdfast"], speeds[best]))
    other = harness.Spread.of(
        harness.ratios(
            speeds["holdfast"], speeds[next(form for form in BARE_FORMS if form != best)]
        )
    )
    return (
        f"{floats / 1e6:.2f} M parameters, {medians['holdfast']:.0f} / {medians[best]:.0f} "
        f"samples/s = {ratio.text(3)}; against the other form {other.text(3)}; bound {BOUND}: "
        f"{harness.verdict(holds=ratio.median >= BOUND)}"
    )


class AlternatingReplica:
    """A replica that lets others have their turn after every block of its steps."""

    def __init__(self, inner: Replica, block_steps: int, between: Callable[[], None]) -> None:
        self._inner = inner
        self._block_steps = block_steps
        self._between = between
        self._steps = 0

    @property
    def shape(self) -> ContributionShape:
        return self._inner.shape

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        self._inner.contribute(batch, out)

    def apply(self, total: FloatVector, samples: int) -> None:
        self._inner.apply(total, samples)
        self._steps += 1
        if self._steps % self._block_steps == 0:
            self._between()

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        self._inner.evaluate(batch, out)

    def results(self, sums: Any, samples: int) -> dict[str, float]:
        return self._inner.results(sums, samples)

    def state(self) -> Tensors:
        return self._inner.state()

    def load(self, state: Tensors) -> None:
        self._inner.load(state)


class Rounds:
    """Measures a block of every method in turn; the first round warms up and does not count."""

    def __init__(self, name: str, x: Array, y: Array) -> None:
        import bare
        from models import SUBJECTS
        from mpi4py import MPI

        self._subject = SUBJECTS[name]
        self._comm = MPI.COMM_WORLD
        self._x, self._y = x, y
        self._peers = {
            form: bare.BareReplica(self._subject.build(), self._comm, in_place=form == "in_place")
            for form in BARE_FORMS
        }
        self._order = np.random.default_rng(0).permutation(len(x))
        self._began = 0.0
        self.speeds: dict[str, list[float]] = {name: [] for name in ("holdfast", *BARE_FORMS)}

    def turn(self) -> None:
        """End a block of holdfast's steps, run one of each peer, begin holdfast's next."""
        self._comm.Barrier()
        if self._began:
            self._note("holdfast", self._began)
        for form in BARE_FORMS if len(self.speeds["holdfast"]) % 2 else reversed(BARE_FORMS):
            begin = time.perf_counter()
            self._run(form)
            self._comm.Barrier()
            if self._began:
                self._note(form, begin)
        self._began = time.perf_counter()

    def _note(self, name: str, begin: float) -> None:
        samples = self._subject.block_steps * self._subject.batch * self._comm.size
        self.speeds[name].append(samples / (time.perf_counter() - begin))

    def _run(self, form: str) -> None:
        batch, ranks = self._subject.batch, self._comm.size
        for step in range(self._subject.block_steps):
            start = (step * ranks + self._comm.rank) * batch % len(self._order)
            ids = self._order[start : start + batch]
            self._peers[form].step(self._x[ids], self._y[ids])


def _train(name: str, rounds: int) -> None:
    """Be a worker of a holdfast job."""
    import keras
    from models import CLASSES, SUBJECTS
    from mpi4py import MPI

    from holdfast.runtime.model.keras_replica import KerasReplica

    subject = SUBJECTS[name]
    global_batch = WORKERS * subject.batch
    random = np.random.default_rng(5)
    x = subject.sample(random, BATCHES * global_batch)
    y = random.integers(0, CLASSES, len(x))
    found: dict[str, Any] = {}

    def build() -> AlternatingReplica:
        keras.utils.set_random_seed(1)
        measured = Rounds(name, x, y)
        model = subject.build()
        found.update(speeds=measured.speeds, floats=model.count_params())
        inner = KerasReplica(model, x[: subject.batch], y[: subject.batch])
        return AlternatingReplica(inner, subject.block_steps, measured.turn)

    steps = (rounds + 1) * subject.block_steps
    epochs = -(-steps // BATCHES)
    data = ArrayData(x, y)
    Trainer(build, data, global_batch=global_batch, epochs=epochs, save_every=10**9).run()
    if MPI.COMM_WORLD.rank == 0:
        Path(os.environ[harness.RESULT_VARIABLE]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
