"""Many struck runs beside a busy core, and undisturbed ones on an overloaded machine; see ci/soak.

Run number i has the seed S + i, which decides its workers, its model and its strikes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.tools.followed_run import FollowedRun, RunTerms, follow_run
from holdfast.runtime.tools.strike import (
    BLOWS,
    Agenda,
    Blow,
    Strike,
    parse_blows,
    pick,
    strikes_by_count,
)
from holdfast.runtime.tools.summary import summarize
from holdfast.runtime.tools.verdict import Verdict, judge, percentile

SCRIPT = Path(__file__).resolve().parent.parent / "tests" / "jobs" / "scripts" / "paced.py"
SAMPLES, GLOBAL_BATCH, EPOCHS, SAVE_EVERY, PAUSE_MS = 173, 25, 20, 4, 20
STEPS = EPOCHS * -(-SAMPLES // GLOBAL_BATCH)
FEATURES = (32, 2000)
"""One exchange is gathered, the other sliced."""
HANG_AFTER_S = 240.0
OVERLOADED_WORKERS = 4
OVERLOADED_EPOCHS = 200
_WORKERS, _MICROBATCHES, _FEATURES, _STRIKES = range(100, 104)
"""Purposes of draws, other than those of the plan."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the soak."""

    workers: int
    microbatches: int
    features: int
    strikes: tuple[Strike, ...] = ()
    epochs: int = EPOCHS

    @staticmethod
    def of(seed: int, blows: tuple[Blow, ...]) -> Case:
        """Return the case that follows from ``seed``."""
        count = pick(seed, _STRIKES, 1, 5)
        return Case(
            workers=pick(seed, _WORKERS, 2, 6),
            microbatches=pick(seed, _MICROBATCHES, 6, 9),
            features=FEATURES[pick(seed, _FEATURES, 0, 1)],
            strikes=strikes_by_count(seed, count, STEPS, blows),
        )

    def arguments(self) -> tuple[str, ...]:
        """Return the arguments of ``holdfast run``."""
        return (
            *("-n", str(self.workers), "--microbatches", str(self.microbatches)),
            *("--threads", "1", "--heartbeat-timeout", "5", "--max-restarts", "20"),
            str(SCRIPT),
            *("--samples", str(SAMPLES), "--global-batch", str(GLOBAL_BATCH)),
            *("--epochs", str(self.epochs), "--save-every", str(SAVE_EVERY)),
            *("--features", str(self.features), "--pause-ms", str(PAUSE_MS)),
        )

    def __str__(self) -> str:
        strikes = "; ".join(map(str, self.strikes))
        return f"{self.workers} workers, M {self.microbatches}, {self.features} features; {strikes}"


class Twins:
    """The undisturbed run of each model, once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[tuple[int, int], FollowedRun] = {}

    def of(self, case: Case) -> FollowedRun:
        """Return the run that ``case`` must end like."""
        key = (case.microbatches, case.features)
        if key not in self._known:
            twin = _follow(Case(2, *key), self._root / f"twin-{key[0]}-{key[1]}")
            if twin.failure is not None:
                raise SystemExit(f"soak: the undisturbed run of {key} failed: {twin.failure}")
            self._known[key] = twin
        return self._known[key]


def main() -> int:
    """Run both parts; return the exit code."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so clean up
    blows = parse_blows(options.kinds) if options.kinds else BLOWS
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as name:
        seeds = range(options.seed, options.seed + options.runs)
        bad = _strike_many(seeds, blows, Path(name))
        fenced = _overload(options.overload_minutes * 60, Path(name))
    return 1 if bad or fenced else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--overload-minutes", type=float, default=30.0)
    parser.add_argument("--kinds", help='what may strike, as in "kill, stop agent"')
    return parser.parse_args()


def _strike_many(seeds: range, blows: tuple[Blow, ...], root: Path) -> int:
    """Run the cases of ``seeds`` beside a busy core; return how many were bad."""
    twins, verdicts, bad = Twins(root), [], []
    with _busy(1):
        for seed in seeds:
            case = Case.of(seed, blows)
            run = _follow(case, root / f"run-{seed}")
            verdict = judge(run, twins.of(case))
            verdicts.append(verdict)
            print(_line(seed, case, verdict), flush=True)
            if not verdict.is_good:
                bad.append(seed)
                print((root / f"run-{seed}" / "stderr.txt").read_text(errors="replace")[-4000:])
            shutil.rmtree(root / f"run-{seed}")
    _print_table(verdicts)
    for seed in bad:
        print(f"bad: replay with ci/soak --seed {seed} --runs 1 --overload-minutes 0")
    return len(bad)


def _overload(seconds: float, root: Path) -> int:
    """Train without a strike on cores that are all overloaded; return how many workers died."""
    lost, runs, began = 0, 0, time.monotonic()
    with _busy(2 * (os.cpu_count() or 1)) if seconds else contextlib.nullcontext():
        while time.monotonic() - began < seconds:
            case = Case(OVERLOADED_WORKERS, 6, FEATURES[0], epochs=OVERLOADED_EPOCHS)
            run = _follow(case, root / f"overloaded-{runs}")
            failures = summarize(run.entries).failures
            lost += len(failures) + (run.failure is not None)
            runs += 1
            for failure in failures:
                print(f"soak: a healthy worker was lost: {failure}")
            if run.failure is not None:
                print(f"soak: {run.failure}\n{run.evidence}")
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


def _follow(case: Case, folder: Path) -> FollowedRun:
    return follow_run(RunTerms(case.arguments(), folder, HANG_AFTER_S), Agenda(case.strikes))


def _line(seed: int, case: Case, verdict: Verdict) -> str:
    word = "ok " if verdict.is_good else "BAD"
    codes = "+".join(map(str, verdict.exit_codes))
    missed = sum(told.victim is None for told in verdict.strikes)
    strange = [f"no strike explains a {told}" for told in verdict.unexplained]
    head = f"{word} {verdict.wall_s:5.1f} s exit {codes} missed {missed}  seed {seed}: {case}"
    return "\n    ".join([head, *strange, *verdict.complaints, *verdict.evidence.splitlines()])


def _print_table(verdicts: list[Verdict]) -> None:
    """Print the time to recover by kind, over all runs."""
    times: dict[str, list[float]] = {}
    for told in (told for verdict in verdicts for told in verdict.strikes):
        if told.recovered_s is not None:
            times.setdefault(" ".join(told.strike.split()[:2]), []).append(told.recovered_s)
    for blow, found in sorted(times.items()):
        median, most = percentile(found, 0.5), percentile(found, 0.99)
        print(f"{blow:<24}{len(found):4d} recovered, median {median:6.2f} s, 99 % {most:6.2f} s")
    bad = sum(not verdict.is_good for verdict in verdicts)
    hung = sum("moved" in complaint for verdict in verdicts for complaint in verdict.complaints)
    wrong = sum(c.startswith("wrong") for verdict in verdicts for c in verdict.complaints)
    left = sum(bool(verdict.leftovers) for verdict in verdicts)
    print(
        f"soak: {len(verdicts)} runs, {bad} bad: {hung} hung, {wrong} with wrong bytes, "
        f"{left} left something behind"
    )


if __name__ == "__main__":
    sys.exit(main())
