"""Goodput of a Keras model on 4 workers while strikes come every minute on average.

    python bench/goodput.py [--minutes 30] [--mtbf 60] [--kinds kill] [--seed 1] [--workers 4]
                            [--spares 0]

The job runs twice: undisturbed, and struck from outside.  The bound is the twin's wall time
divided by that of the struck run.  A short run first tells how many epochs take ``--minutes``.
Twin and struck run come one after the other, so noise of the machine hits them differently: the
load is printed beside them.

The default kills only, any process.  A stopped process costs one heartbeat timeout by design,
10 s at the default, which says nothing about recovery.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Sequence
from pathlib import Path

import harness
from striker import Strike, StruckRun, blows_of, run_struck, strikes_by_the_clock

from holdfast.testing import JobRequest, JobRun

ROOT = Path(__file__).resolve().parents[1]

GLOBAL_BATCH = 1497
"""All samples of the digits that are not held out: one step an epoch."""
BOUND = 0.97
CALIBRATION_EPOCHS = 150
SLOWEST = 3
"""A run that takes so many times as long as wished has hung."""


def main() -> None:
    options = _options()
    harness.print_heading(
        f"goodput, {options.workers} workers, a strike every {options.mtbf:g} s on average"
    )
    with harness.private_directory() as directory:
        _, short = _run(options, directory / "calibration", CALIBRATION_EPOCHS)
        epochs = round(options.minutes * 60 * CALIBRATION_EPOCHS / short.report.parts_s["training"])
        twin, expected = _run(options, directory / "twin", max(1, epochs))
        until_s = SLOWEST * options.minutes * 60
        strikes = strikes_by_the_clock(
            random.Random(options.seed), options.mtbf, until_s, options.kinds
        )
        run, struck = _run(options, directory / "struck", max(1, epochs), tuple(strikes))
    _print(run, struck, twin, expected)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of the undisturbed run")
    parser.add_argument("--mtbf", type=float, default=60.0, metavar="SECONDS")
    words = 'what may strike, as in "kill worker, stop agent"'
    parser.add_argument("--kinds", type=blows_of, default=blows_of("kill"), help=words)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--spares", type=int, default=0)
    return parser.parse_args()


def _run(
    options: argparse.Namespace, run_dir: Path, epochs: int, strikes: Sequence[Strike] = ()
) -> tuple[StruckRun, JobRun]:
    """Train for so many epochs while it is struck."""
    print(f"{run_dir.name}: {epochs} epochs (load {os.getloadavg()[0]:.1f})", flush=True)
    request = JobRequest(
        script=ROOT / "examples" / "01_digits.py",
        run_dir=run_dir,
        workers=options.workers,
        microbatches=options.workers,
        argv=["--epochs", str(epochs), "--global-batch", str(GLOBAL_BATCH)],
        options=[
            *("--spares", str(options.spares), "--threads", "1"),
            *("--max-restarts", "1000", "--save-every", "auto"),
        ],
    )
    run = run_struck(request, strikes, within_s=SLOWEST * max(600, options.minutes * 60))
    if run.ended is None:
        raise RuntimeError(f"the run in {run_dir.name} failed: {run.failure}")
    return run, run.ended


def _print(run: StruckRun, struck: JobRun, twin: StruckRun, expected: JobRun) -> None:
    hits = [one for one in run.struck if one.pid is not None]
    complaints = list(run.complaints(str(expected.sha256)))
    print(f"{struck.report.steps} steps, {len(hits)} strikes, exit codes {run.exit_codes}")
    print("".join(f"BAD: {complaint}\n" for complaint in complaints), end="")
    print(f"{'':<18}{'struck':>12}{'twin':>12}")
    for name, length in struck.report.parts_s.items():
        print(f"{name:<18}{length:>10.2f} s{expected.report.parts_s.get(name, 0.0):>10.2f} s")
    print(f"{'all':<18}{run.seconds:>10.2f} s{twin.seconds:>10.2f} s")
    speed = twin.seconds / run.seconds
    holds = harness.verdict(holds=not complaints and speed >= BOUND)
    print(f"speed {speed:.1%} of the undisturbed twin; bound {BOUND:.0%}: {holds}")


if __name__ == "__main__":
    main()
