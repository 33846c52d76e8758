"""Many struck runs beside a busy core, and undisturbed ones on an overloaded machine; see ci/soak.

Run number i has the seed S + i, which decides its workers, its model and its strikes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from striker import BLOWS, Blow, Strike, StruckRun, blows_of, random_strikes, run_struck
from workload import LONG, Workload, remembering, request_of

PACED = replace(LONG, epochs=20, save_every=4)
WITHIN_S = 400.0
OVERLOADED = replace(PACED, microbatches=6, epochs=200)
OVERLOADED_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the soak."""

    workers: int
    workload: Workload
    strikes: tuple[Strike, ...] = ()

    @staticmethod
    def of(seed: int, blows: Sequence[Blow]) -> Case:
        """Return the case that follows from ``seed``."""
        choose = random.Random(seed)
        workload = replace(
            PACED,
            microbatches=choose.randint(6, 9),
            features=choose.choice((32, 2000)),  # one exchange is gathered, the other sliced
        )
        strikes = random_strikes(choose, choose.randint(1, 5), workload.steps, blows)
        return Case(choose.randint(2, 6), workload, tuple(strikes))

    def run(self, folder: Path) -> StruckRun:
        """Run it in a folder of its own."""
        options = ("--heartbeat-timeout", "5", "--max-restarts", "20")
        request = request_of(self.workload, folder, workers=self.workers, options=options)
        return run_struck(request, self.strikes, within_s=WITHIN_S)

    def __str__(self) -> str:
        work, strikes = self.workload, "; ".join(map(str, self.strikes))
        terms = f"M {work.microbatches}, {work.features} features"
        return f"{self.workers} workers, {terms}; {strikes}"


def main() -> int:
    """Run both parts; return the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so clean up
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as name:
        seeds = range(options.seed, options.seed + options.runs)
        bad = _strike_many(seeds, options.kinds, Path(name))
        fenced = _overload(options.overload_minutes * 60, Path(name))
    return 1 if bad or fenced else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--overload-minutes", type=float, default=30.0)
    words = 'what may strike, as in "kill, stop agent"'
    parser.add_argument("--kinds", type=blows_of, default=BLOWS, help=words)
    return parser.parse_args()


def _strike_many(seeds: range, blows: Sequence[Blow], root: Path) -> int:
    """Run the cases of ``seeds`` beside a busy core; return how many were bad."""
    undisturbed = remembering(lambda name: Path(tempfile.mkdtemp(prefix=name, dir=root)))
    bad, strikes, missed = [], 0, 0
    with _busy(1):
        for seed in seeds:
            case, folder = Case.of(seed, blows), root / f"run-{seed}"
            expected = undisturbed(case.workload)
            run = case.run(folder)
            complaints = list(run.complaints(expected))
            lost = sum(struck.pid is None for struck in run.struck)
            codes = "+".join(map(str, run.exit_codes))
            word = "BAD" if complaints else "ok "
            head = f"{word} {run.seconds:5.1f} s exit {codes} missed {lost}  seed {seed}: {case}"
            print("\n    ".join([head, *complaints]), flush=True)
            bad += [seed] if complaints else []
            strikes, missed = strikes + len(run.struck), missed + lost
            shutil.rmtree(folder, ignore_errors=True)
    print(f"soak: {len(seeds)} runs, {len(bad)} bad; {strikes} strikes, {missed} of them missed")
    for seed in bad:
        print(f"bad: replay with ci/soak --seed {seed} --runs 1 --overload-minutes 0")
    return len(bad)


def _overload(seconds: float, root: Path) -> int:
    """Train without a strike on cores that are all overloaded; return how many workers died."""
    lost, runs, began = 0, 0, time.monotonic()
    with _busy(2 * (os.cpu_count() or 1)) if seconds else contextlib.nullcontext():
        while time.monotonic() - began < seconds:
            run = Case(OVERLOADED_WORKERS, OVERLOADED).run(root / f"overloaded-{runs}")
            found = [run.failure] if run.ended is None else run.ended.report.failures
            for what in found:
                print(f"soak: a healthy worker was lost: {what}")
            lost, runs = lost + len(found), runs + 1
    minutes = (time.monotonic() - began) / 60
    print(f"soak: {runs} runs in {minutes:.1f} overloaded minutes; {lost} healthy workers lost")
    return lost


@contextlib.contextmanager
def _busy(processes: int) -> Iterator[None]:
    """Keep as many cores busy with other work."""
    others = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    sys.exit(main())
