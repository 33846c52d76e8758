"""An unchanged Keras script under ``holdfast run`` against the same script with plain Python.

    python bench/fit.py [--rounds 5] [--models dnn cnn mlp transformer pipeline transformer-4]

Three figures for each model, all with one thread a process, in rounds that take turns:

* samples a second of ``holdfast run -n 1``, against plain Python (bound 0.95);
* seconds from the command to the end of the first step, against the same (bound 1.15);
* samples a second of ``-n 2`` with two microbatches against ``-n 1``, beside what two
  independent processes of plain Python do in sum against one.

The script is ``fit_script.py``.  A run's speed is the median of its epochs but the first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import harness

from holdfast.testing import JobRequest

SPEED_BOUND = 0.95
START_BOUND = 1.15
SCRIPT = Path(__file__).with_name("fit_script.py")
EPOCHS = 6


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its batch, and so many steps that an epoch takes a second or two on one core."""

    model: str
    batch: int
    steps: int
    bound: float | None = SPEED_BOUND


CASES = {
    "dnn": Case("dnn", 128, 120),
    "cnn": Case("cnn", 128, 6),
    "mlp": Case("mlp", 32, 8),
    "transformer": Case("transformer", 32, 2),  # the batch of Keras if a script names none
    "pipeline": Case("pipeline", 128, 120),
    "transformer-4": Case("transformer", 4, 8, bound=None),  # 64 tokens for 25 million weights
}
THREADS: Mapping[str, str] = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


@dataclass(frozen=True, slots=True)
class Round:
    """Samples a second of each way, and seconds to the first step."""

    plain: float
    pair: float
    one: float
    two: float
    plain_start_s: float
    one_start_s: float


def main() -> None:
    options = _options()
    harness.print_heading("an unchanged Keras script, holdfast run / plain Python, 1 thread each")
    for name in options.models:
        rounds = [_round(CASES[name]) for _ in range(options.rounds)]
        print(f"{name}: {_describe(rounds, CASES[name].bound)}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    return parser.parse_args()


def _round(case: Case) -> Round:
    """Measure every way once, each right after the other."""
    common = (case.model, "--batch", str(case.batch))
    timed = (*common, "--epochs", str(EPOCHS), "--steps", str(case.steps))
    first = (*common, "--epochs", "1", "--steps", "2", "--first-step")
    samples = case.steps * case.batch
    (plain,) = _plain(timed)
    one = _holdfast(timed, workers=1)
    two = _holdfast(timed, workers=2)
    pair = _plain(timed, processes=2)
    begun = time.monotonic()
    ((plain_start, *_),) = _plain(first)
    then = time.monotonic()
    one_start, *_ = _holdfast(first, workers=1)
    return Round(
        plain=_speed(plain, samples),
        pair=sum(_speed(moments, samples) for moments in pair),
        one=_speed(one, samples),
        two=_speed(two, samples),
        plain_start_s=plain_start - begun,
        one_start_s=one_start - then,
    )


def _speed(moments: Sequence[float], samples: int) -> float:
    """Return samples a second from the beginnings and ends of epochs."""
    epochs = list(zip(moments[::2], moments[1::2], strict=True))[1:]
    return statistics.median(samples / (end - begin) for begin, end in epochs)


def _plain(argv: Sequence[str], processes: int = 1) -> list[list[float]]:
    """Run the script with plain Python, in processes beside each other; return their moments."""
    with harness.private_directory() as directory:
        result = directory / "result"
        environment = {**os.environ, **THREADS, harness.RESULT_VARIABLE: str(result)}
        with (directory / "log").open("wb") as log:
            started = [
                subprocess.Popen(
                    [sys.executable, str(SCRIPT), *argv],
                    env=environment,
                    cwd=directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
                for _ in range(processes)
            ]
            codes = [process.wait(harness.JOB_TIMEOUT_S) for process in started]
        if any(codes):
            raise RuntimeError(f"{argv} ended with {codes}:\n{(directory / 'log').read_text()}")
        return _moments(result)


def _holdfast(argv: Sequence[str], workers: int) -> list[float]:
    """Run the script under holdfast; return the moments of one of its workers."""
    with harness.private_directory() as directory:
        result = directory / "result"
        request = JobRequest(
            script=SCRIPT,
            run_dir=directory / "run",
            workers=workers,
            microbatches=workers,
            argv=argv,
            options=("--threads", "1"),
            environment={**THREADS, harness.RESULT_VARIABLE: str(result)},
            directory=directory,
        )
        harness.run_job(request)
        return _moments(result)[0]


def _moments(result: Path) -> list[list[float]]:
    files = sorted(result.parent.glob(f"{result.name}.*"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in files]


def _describe(rounds: Sequence[Round], bound: float | None) -> str:
    speed = harness.Spread.of([each.one / each.plain for each in rounds])
    start = harness.Spread.of([each.one_start_s / each.plain_start_s for each in rounds])
    two = harness.Spread.of([each.two / each.one for each in rounds])
    pair = harness.Spread.of([each.pair / each.plain for each in rounds])
    samples = statistics.median(each.one for each in rounds)
    seconds = statistics.median(each.one_start_s for each in rounds)
    return (
        f"{samples:.0f} samples/s, to plain {speed.text(3)}, {_judged(speed.median, bound)}; "
        f"first step after {seconds:.1f} s, to plain {start.text()}, bound {START_BOUND}: "
        f"{harness.verdict(holds=start.median <= START_BOUND)}; -n 2 / -n 1 {two.text()}, "
        f"two independent processes / one {pair.text()}"
    )


def _judged(ratio: float, bound: float | None) -> str:
    if bound is None:
        return "no bound"
    return f"bound {bound}: {harness.verdict(holds=ratio >= bound)}"


if __name__ == "__main__":
    main()
