#!/usr/bin/env python
"""Run many short jobs with random faults; every one must end with the bytes of an undisturbed run.

Usage: ``ci/campaign.py [--seed S] [--runs N] [--no-shrink] [--mpiexec PATH]``, in an
environment that has holdfast and an MPI.  Without shrinking every death is a relaunch.

Run number i has the seed S + i.  The seed decides everything about it: the number of
workers, spares and microbatches, and the addresses of the faults.  So
``ci/campaign.py --seed S --runs 1`` replays the run whose seed is S.  ``complaints`` checks
each run.  Exits 1 if any run was bad.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from workload import UNEVEN, Workload, complaints_of, remembering, request_of

from holdfast.recovery.fault import Fault, FaultKind, Site
from holdfast.recovery.world import WorkerId
from holdfast.testing import JobRun, start_job

TRAINED = replace(UNEVEN, save_every=4)
TIMEOUT_S = 240.0

_FENCED_KINDS = frozenset({FaultKind.STOP, FaultKind.GIL})
_OURS = ("killed with its launch", "guard lost", "the agent ends")
"""Deaths that follow from the loss of a whole launch."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the campaign."""

    seed: int
    workers: int
    spares: int
    workload: Workload
    faults: tuple[Fault, ...]
    shards: int

    @staticmethod
    def of(seed: int) -> Case:
        """Return the case that follows from ``seed``."""
        choose = random.Random(seed)
        workers = choose.randint(2, 6)
        spares = choose.randint(0, 1)
        count = choose.choices(range(5), weights=(1, 2, 3, 3, 3))[0]
        microbatches = choose.randint(1, 9)
        features = choose.choice((32, 2000))  # one exchange is gathered, the other sliced
        faults = _faults(choose, count, first_launch=workers + spares)
        workload = replace(TRAINED, microbatches=microbatches, features=features)
        return Case(seed, workers, spares, workload, faults, choose.choice((1, 2)))

    @property
    def options(self) -> tuple[str, ...]:
        """Options of the job; its timeout is short if a fault makes a worker stand still."""
        timeout_s = 5 if any(fault.kind in _FENCED_KINDS for fault in self.faults) else 10
        terms = ("--spares", str(self.spares), "--heartbeat-timeout", str(timeout_s))
        return (*terms, "--shards", str(self.shards))

    def __str__(self) -> str:
        faults = "; ".join(map(str, self.faults)) or "no fault"
        return (
            f"seed {self.seed}: {self.workers}+{self.spares} workers, M "
            f"{self.workload.microbatches}, {self.workload.features} features, "
            f"{self.shards} shards; {faults}"
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a case: its jobs (a second one if the first gave up) and its complaints."""

    case: Case
    jobs: tuple[JobRun, ...]
    complaints: tuple[str, ...]
    seconds: float


def main() -> int:
    """Run the campaign and print its table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--no-shrink", action="store_true", help="relaunch at every death")
    parser.add_argument("--mpiexec", help="the site's MPI instead of our own")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so clean up

    mode = ("--no-shrink",) if options.no_shrink else ()
    mode += ("--mpiexec", options.mpiexec) if options.mpiexec else ()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="holdfast-campaign-") as root:
        undisturbed = remembering(lambda name: Path(tempfile.mkdtemp(prefix=name, dir=root)))
        for seed in range(options.seed, options.seed + options.runs):
            case = Case.of(seed)
            outcome = run_case(case, Path(root) / str(seed), mode, undisturbed(case.workload))
            outcomes.append(outcome)
            print(describe(outcome), flush=True)
    print(table(outcomes))
    bad = [outcome for outcome in outcomes if outcome.complaints]
    for outcome in bad:
        replay = " ".join(("--seed", str(outcome.case.seed), "--runs 1", *mode))
        print(f"bad: replay with ci/campaign.py {replay}")
    return 1 if bad else 0


def run_case(case: Case, run_dir: Path, mode: Sequence[str], expected: str) -> Outcome:
    """Run a case; a job whose budget is spent is run again without faults."""
    began = time.monotonic()
    jobs: list[JobRun] = []
    options = [*case.options, *mode]
    plain = request_of(case.workload, run_dir, workers=case.workers, options=options)
    try:
        for faults in (tuple(map(str, case.faults)), ()):
            with start_job(replace(plain, faults=faults), timeout_s=TIMEOUT_S) as job:
                jobs.append(job.wait())
            if jobs[-1].exit_code != 70:
                break
    except TimeoutError as error:
        return Outcome(case, tuple(jobs), (str(error),), time.monotonic() - began)
    found = (*_complaints(jobs), *complaints_of(jobs[-1], case.workload, expected))
    return Outcome(case, tuple(jobs), found, time.monotonic() - began)


def _complaints(jobs: Sequence[JobRun]) -> Iterator[str]:
    """Yield what must not be, whatever the end: ill words, and deaths that nothing explains."""
    first, last = jobs[0], jobs[-1]
    for job in jobs:
        if "Traceback" in job.stderr and "InjectedFault" not in job.stderr:
            yield f"a traceback of ours: {job.stderr}"
    if first.exit_code == 70 and "budget" not in (first.report.reason or ""):
        yield f"gave up, and not for its budget: {first.report.reason}"
    struck = {fault.worker for fault in last.report.faults}
    for failure in last.report.failures:
        if failure.worker not in struck and not failure.cause.startswith(_OURS):
            yield f"worker {failure.worker} died for no reason: {failure.cause}"


def describe(outcome: Outcome) -> str:
    """Return one line about a run, and more if it was bad."""
    deaths = sum(len(job.report.failures) for job in outcome.jobs[-1:])
    codes = "+".join(str(job.exit_code) for job in outcome.jobs)
    head = f"{'BAD' if outcome.complaints else 'ok '} {outcome.seconds:5.1f} s exit {codes or '-'}"
    lines = [f"{head} {deaths} deaths  {outcome.case}", *outcome.complaints]
    if outcome.complaints:
        lines += [job.stderr for job in outcome.jobs]
    return "\n    ".join(lines)


def table(outcomes: list[Outcome]) -> str:
    """Return the campaign's figures."""
    reports = [outcome.jobs[-1].report for outcome in outcomes if outcome.jobs]
    struck = [fault for report in reports for fault in report.faults]
    recoveries = [recovery for report in reports for recovery in report.recoveries]
    times = [r.since_failure_ms for r in recoveries if r.since_failure_ms is not None]
    codes = Counter(outcome.jobs[0].exit_code for outcome in outcomes if outcome.jobs)
    seconds = [outcome.seconds for outcome in outcomes]
    rows = {
        "runs": len(outcomes),
        "bad": sum(bool(outcome.complaints) for outcome in outcomes),
        "exit codes": _counts(codes),
        "faults planned": sum(len(outcome.case.faults) for outcome in outcomes),
        "faults struck": len(struck),
        "  by kind": _counts(Counter(fault.kind for fault in struck)),
        "  by site": _counts(Counter(fault.site for fault in struck)),
        "deaths": sum(len(report.failures) for report in reports),
        "recovered in place": len(recoveries),
        "  death to next step": _spread(times, "ms"),
        "relaunches": sum(len(report.relaunches) for report in reports),
        "seconds a run": _spread(seconds, "s"),
    }
    return "\n".join(f"{name:<24}{value}" for name, value in rows.items())


def _faults(choose: random.Random, count: int, first_launch: int) -> tuple[Fault, ...]:
    """Return up to ``count`` faults at different addresses, often at the time of others."""
    faults: dict[object, Fault] = {}
    togetherness = choose.choice((0.1, 0.4, 0.9))
    for _ in range(count):
        others = [fault.step for fault in faults.values() if fault.site is not Site.REPAIR]
        site = choose.choice(list(Site))
        step = choose.randint(1, TRAINED.steps)
        if site is Site.SAVE:
            step = choose.randrange(TRAINED.save_every, TRAINED.steps + 1, TRAINED.save_every)
        elif others and (site is Site.REPAIR or choose.random() < togetherness):
            step = choose.choice(others)
        worker = choose.randrange(first_launch)
        if choose.random() < 0.1:
            worker = first_launch + choose.randint(0, 2)  # one of a relaunch
        fault = Fault(
            kind=choose.choice([kind for kind in FaultKind if not kind.is_of_host]),
            worker=WorkerId(worker),
            step=step,
            site=site,
            attempt=choose.choice((1, 1, 1, 1, 1, 1, 2)),
        )
        faults[fault.address] = fault
    return tuple(faults.values())


def _counts(counter: Counter[object] | Counter[str] | Counter[int]) -> str:
    ordered = sorted(counter.items(), key=lambda item: str(item[0]))
    return ", ".join(f"{name}: {count}" for name, count in ordered) or "-"


def _spread(values: list[float], unit: str) -> str:
    if not values:
        return "-"
    middle = statistics.median(values)
    return f"median {middle:.1f}, least {min(values):.1f}, most {max(values):.1f} {unit}"


if __name__ == "__main__":
    sys.exit(main())
