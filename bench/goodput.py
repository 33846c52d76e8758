"""Goodput of a Keras model on 4 workers while strikes come every minute on average.

    python bench/goodput.py [--minutes 30] [--mtbf 60] [--kinds kill] [--seed 1] [--workers 4]
                            [--spares 0]

`holdfast chaos` runs the job twice: undisturbed, and struck from outside.  The bound is the
twin's wall time divided by that of the struck run.  A short run first tells how many epochs
take ``--minutes``.  Twin and struck run come one after the other, so noise of the machine
hits them differently: the load is printed beside them.

The default kills only, any process.  A stopped process costs one heartbeat timeout by design,
10 s at the default, which says nothing about recovery.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import harness

from holdfast.runtime.tools.followed_run import RunTerms, follow_run
from holdfast.runtime.tools.strike import Agenda, parse_blows
from holdfast.runtime.tools.summary import Bucket, buckets_of, seconds, spans_of
from holdfast.runtime.tools.verdict import ChaosTerms, Verdict, run_chaos, shares

SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "01_digits.py"
GLOBAL_BATCH = 1497
"""All samples of the digits that are not held out: one step an epoch."""
BOUND = 0.97
CALIBRATION_EPOCHS = 150
HANG_AFTER_S = 300.0


def main() -> None:
    options = _options()
    harness.print_heading(
        f"goodput, {options.workers} workers, a strike every {options.mtbf:g} s on average"
    )
    with harness.private_directory() as directory:
        epochs = max(1, round(options.minutes * 60 / _epoch_s(options, directory)))
        terms = ChaosTerms(
            arguments=_arguments(options, epochs),
            out=directory / "chaos",
            seed=options.seed,
            blows=parse_blows(options.kinds),
            count=0,
            mtbf_s=options.mtbf,
            hang_after_s=HANG_AFTER_S,
        )
        verdict = run_chaos(terms, _tell)
    _print(verdict)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="of the undisturbed run")
    parser.add_argument("--mtbf", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument(
        "--kinds", default="kill", help='what may strike, as in "kill worker, stop agent"'
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--spares", type=int, default=0)
    return parser.parse_args()


def _arguments(options: argparse.Namespace, epochs: int) -> tuple[str, ...]:
    return (
        *("-n", str(options.workers), "--spares", str(options.spares)),
        *("--microbatches", str(options.workers), "--threads", "1"),
        *("--max-restarts", "1000", "--save-every", "auto", str(SCRIPT)),
        *("--epochs", str(epochs), "--global-batch", str(GLOBAL_BATCH)),
    )


def _epoch_s(options: argparse.Namespace, directory: Path) -> float:
    """Return the seconds of an epoch, from a short run."""
    arguments = _arguments(options, CALIBRATION_EPOCHS)
    run = follow_run(RunTerms(arguments, directory / "calibration", HANG_AFTER_S), Agenda(()))
    if run.failure is not None:
        raise RuntimeError(f"the calibration failed: {run.failure}\n{run.evidence}")
    buckets = buckets_of(spans_of(run.entries, run.began, run.ended))
    return seconds(buckets[Bucket.TRAINING]) / CALIBRATION_EPOCHS


def _tell(text: str) -> None:
    print(f"{text} (load {os.getloadavg()[0]:.1f})", flush=True)


def _print(verdict: Verdict) -> None:
    print(f"load at the end {os.getloadavg()[0]:.1f}; exit codes {verdict.exit_codes}")
    print(f"{'good' if verdict.is_good else 'BAD'}: {verdict.steps} steps")
    for complaint in verdict.complaints:
        print(f"    {complaint}")
    if verdict.evidence:
        print(verdict.evidence)
    print(f"{'':<18}{'struck':>12}{'':>9}{'twin':>12}")
    twin = shares(verdict.twin_buckets)
    for name, (length, part) in shares(verdict.buckets).items():
        other, share = twin[name]
        print(f"{name:<18}{length:>10.2f} s{part:>8.1%} {other:>10.2f} s{share:>8.1%}")
    print(f"{'all':<18}{verdict.wall_s:>10.2f} s{'':>8} {verdict.twin_wall_s:>10.2f} s")
    for found in verdict.recoveries:
        times = "-"
        if found.median_s is not None:
            times = f"median {found.median_s:.2f} s, 99 % {found.p99_s:.2f} s"
        print(f"{found.blow:<24}{found.strikes:>3} strikes, to recover: {times}")
    for interruption in verdict.unexplained:
        print(f"no strike explains a {interruption}")
    holds = harness.verdict(holds=verdict.is_good and verdict.speed >= BOUND)
    print(f"speed {verdict.speed:.1%} of the undisturbed twin; bound {BOUND:.0%}: {holds}")


if __name__ == "__main__":
    main()
