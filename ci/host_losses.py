"""Run many jobs over four hosts, lose hosts of them, and measure it; see ``ci/cluster``.

Run number i has the seed S + i, which decides everything about it.  When a loss strikes is counted
in steps, so a slow machine does not move it to another part of the job.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from cluster import why_not
from struck_job import HEARTBEAT_S, KINDS, Case, Outcome, case_of, links_case_of, run_case
from struck_journal import step_times
from workload import remembering

_TOGETHER = "two at once"
_ENOUGH_RUNS = 3
"""So many times the runs that would do if each strike were alone and met a worker."""


def main() -> int:
    """Run the campaign; return the exit code."""
    options = _options()
    if reason := why_not():
        print(f"cluster: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so clean up
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-cluster-") as name:
        undisturbed = remembering(lambda folder: Path(tempfile.mkdtemp(prefix=folder, dir=name)))
        for case in _cases(options, outcomes):
            folder = Path(name) / str(case.seed)
            if options.save_every:
                often = replace(case.workload, save_every=options.save_every)
                case = replace(case, workload=often)  # noqa: PLW2901  (it is the one that runs)
            outcome = run_case(case, folder, undisturbed, by_ssh=options.ssh)
            outcomes.append(outcome)
            print(outcome, flush=True)
            if outcome.complaints and options.keep:
                shutil.copytree(folder, options.keep / f"seed-{case.seed}", dirs_exist_ok=True)
            shutil.rmtree(folder)
    print("\n".join(_table(outcomes)))
    bad = [outcome for outcome in outcomes if outcome.complaints]
    late = sum(outcome.without_word for outcome in outcomes)
    print(f"{late} steps were applied by a world without the head's word")
    print(f"{len(outcomes)} runs, {sum(len(o.strikes) for o in outcomes)} losses, {len(bad)} bad")
    form = ["--links", "1"] if options.links else ["--runs", "1"]
    for outcome in bad:
        print("bad: replay with ci/cluster --seed", outcome.case.seed, *form, *options.losses)
    return 1 if bad else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--each", type=int, help="go on until each kind was met so often alone")
    parser.add_argument("--links", type=int, help="cut and heal links so often, and nothing else")
    parser.add_argument("--save-every", type=int, help="steps, so that losses meet saves")
    parser.add_argument("--ssh", action="store_true", help="reach the hosts by OpenSSH")
    parser.add_argument("--keep", type=Path, help="folder that gets the files of bad runs")
    parser.add_argument("losses", nargs="*", metavar="LOSS", help=f"of {', '.join(KINDS)}")
    options = parser.parse_args()
    if unknown := set(options.losses) - set(KINDS):
        parser.error(f"{', '.join(unknown)}: there are {', '.join(KINDS)}")
    return options


def _cases(options: argparse.Namespace, outcomes: list[Outcome]) -> Iterator[Case]:
    """Yield the runs, until ``outcomes`` has enough of them."""
    kinds = options.losses or list(KINDS)
    seed = options.seed
    if options.links:
        while sum(len(outcome.strikes) for outcome in outcomes) < options.links:
            yield links_case_of(seed)
            seed += 1
        return
    most = options.runs if options.each is None else _ENOUGH_RUNS * options.each * len(kinds)
    for seed in range(options.seed, options.seed + most):
        yield case_of(seed, kinds)
        met = _met(outcomes)
        if options.each is not None and all(len(met[kind]) >= options.each for kind in kinds):
            return


def _met(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    """Return the seconds of each outage, by the kind of its loss."""
    met = defaultdict[str, list[float]](list)
    for outcome in outcomes:
        for strike, outage in outcome.outages:
            if outage is not None:
                met[strike.kind if strike.is_alone else _TOGETHER].append(outage.seconds)
    return met


def _table(outcomes: list[Outcome]) -> Iterator[str]:
    """Yield the lines of the table by kind of loss."""
    jobs = [outcome.job for outcome in outcomes if outcome.job is not None]
    steps = [seconds for job in jobs for seconds in step_times(job.journal)]
    median_step_ms = statistics.median(steps) * 1000 if steps else 0.0
    yield (
        f"last step before a loss to the first one after it, in ms; a step takes "
        f"{median_step_ms:.0f} ms, and a silent host is given up after {HEARTBEAT_S} s:"
    )
    yield f"| {'loss':16} | count | median | worst |"
    yield f"|{'-' * 18}|------:|-------:|------:|"
    for kind, seconds in sorted(_met(outcomes).items()):
        median, worst = statistics.median(seconds) * 1000, max(seconds) * 1000
        yield f"| {kind:16} | {len(seconds):5} | {median:6.0f} | {worst:5.0f} |"


if __name__ == "__main__":
    sys.exit(main())
