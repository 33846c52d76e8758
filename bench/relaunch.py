"""All workers killed to the next applied step, against a cold start of the same job.

    python bench/relaunch.py [--jobs 5] [--workers 4 2] [--no-shrink [--mpiexec PATH]]

Both times come from one job.  The cold start goes from the start of ``holdfast run`` to
its first applied step.  The relaunch goes from the last of the kills to the next applied
step.  Its workers are forked from warm processes and restore the newest checkpoint.  With
``--no-shrink`` one worker is killed, and the relaunch has a bound in seconds of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import harness

from holdfast.testing import JobRequest

BOUND = 0.5
NO_SHRINK_BOUND_S = 2.0
SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "01_digits.py"
KILL_STEP = 15
ARGV = ("--epochs", "2", "--save-every", "5")


def main() -> None:
    options = _options()
    harness.print_heading("all workers killed to next applied step, against a cold start")
    for workers in options.workers:
        cold, warm = [], []
        for _ in range(options.jobs):
            start_s, relaunch_s = _measure(_run(workers, options))
            cold.append(start_s)
            warm.append(relaunch_s)
        ratio = harness.Spread.of(harness.ratios(warm, cold))
        print(
            f"{workers} workers: {harness.Spread.of(warm).text()} s / "
            f"{harness.Spread.of(cold).text()} s = {ratio.text()}; bound {BOUND}: "
            f"{harness.verdict(holds=ratio.median <= BOUND)}",
            flush=True,
        )
        if options.no_shrink:
            holds = harness.Spread.of(warm).median <= NO_SHRINK_BOUND_S
            print(f"  bound {NO_SHRINK_BOUND_S:g} s: {harness.verdict(holds=holds)}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 2])
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--mpiexec", help="the site's, with --no-shrink")
    return parser.parse_args()


def _run(workers: int, options: argparse.Namespace) -> list[harness.Record]:
    mode = ("--no-shrink",) if options.no_shrink else ()
    site = ("--mpiexec", options.mpiexec) if options.mpiexec else ()
    victims = (1,) if options.no_shrink else range(workers)
    with harness.private_directory() as directory:
        request = JobRequest(
            script=SCRIPT,
            run_dir=directory / "run",
            workers=workers,
            microbatches=4,
            faults=[f"kill worker={worker} step={KILL_STEP}" for worker in victims],
            argv=ARGV,
            options=("--threads", "1", *mode, *site),
        )
        return harness.run_job(request)


def _measure(journal: list[harness.Record]) -> tuple[float, float]:
    """Return the seconds of the cold start and of the relaunch."""
    started = journal[0]["now"]
    killed = max(record["now"] for record in journal if record["event"] == "fault")
    first = harness.first(journal, "step")["now"]
    lost = harness.first(journal, "relaunch", after=killed)["now"]  # others may step until then
    following = harness.first(journal, "step", after=lost)["now"]
    return first - started, following - killed


if __name__ == "__main__":
    main()
