"""Strike holdfast's processes on real system calls and real file systems, count the losses.

Usage: ``ci/crash [--short] [--seed S] [--part PART] [--victim V] [--case N] [--sabotage HOW]``.

Parts: ``calls`` kills and fails every system call of every victim, ``power`` cuts the power on
ext4 and XFS at every change, ``damage`` spoils what was committed, and ``sabotage`` removes
each guard of the product in turn, which must be noticed.  Everything follows from the seed,
so ``--part PART --victim V --seed S --case N`` replays a case.  Exits 1 if a single case
went wrong.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import calls
import damage
import power
import sabotage
from sabotages import SABOTAGES
from tally import Enough, Tally, table
from victims.all import VICTIMS

PARTS = ("calls", "power", "damage", "sabotage")
_MOST_SHOWN = 20
_MOST_PROCESSES = 4


@dataclass(frozen=True, slots=True)
class _Work:
    """What a process does by itself: a part of the campaign, on one victim or sabotage."""

    part: str
    name: str
    options: argparse.Namespace

    def run(self) -> list[Tally]:
        """Run it, print its complaints, return its figures."""
        began = time.monotonic()
        tallies = list(_run(self.part, self.name, self.options))
        lines = [line for tally in tallies for line in _complaints(self.options.seed, tally)]
        seconds = time.monotonic() - began
        print("\n".join([*lines, f"{self.part} {self.name}: {seconds:.0f} s"]), flush=True)
        return tallies


def main() -> int:
    """Run the campaign and print its table; return the exit code."""
    options = _options()
    if options.sabotage:
        SABOTAGES[options.sabotage].remove()
        Enough.is_wanted = options.first
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # mkfs is there, but not on every user's PATH
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so clean up

    print(f"seed {options.seed}", flush=True)
    works = [
        _Work(part, name, options)
        for part in options.part or PARTS
        for name in _names(part)
        if not options.victim or name in options.victim
    ]
    tallies = _all_of(works, options)
    print(table(tallies))
    # A machine may lack what a part needs; the whole campaign has not passed there.
    parts = {work.part for work in works}
    ran = {tally.replay.split()[1] for tally in tallies if tally.cases and not tally.skipped}
    is_whole = options.short or parts <= ran
    return 0 if is_whole and not any(tally.complaints for tally in tallies) else 1


def _all_of(works: Sequence[_Work], options: argparse.Namespace) -> list[Tally]:
    """Run all works, several at once if nobody waits for one case or a few."""
    count = min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), len(works))
    if options.short or options.sabotage or options.case is not None or count <= 1:
        return [tally for work in works for tally in work.run()]
    with ProcessPoolExecutor(count, multiprocessing.get_context("fork")) as pool:
        try:
            found = list(pool.map(_Work.run, works))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    return [tally for tallies in found for tally in tallies]


def _names(part: str) -> tuple[str, ...]:
    """Return the victims of a part, or its sabotages."""
    if part == "sabotage":
        return tuple(SABOTAGES)
    return damage.NAMES if part == "damage" else tuple(VICTIMS)


def _options() -> argparse.Namespace:
    text = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="ci/crash", description=text)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="a sample, in a minute or two")
    parser.add_argument("--part", action="append", choices=PARTS, help="all if not given")
    names = [name for part in PARTS for name in _names(part)]
    parser.add_argument(
        "--victim", action="append", choices=sorted({*names}), help="all if not given"
    )
    parser.add_argument("--case", type=int, help="replay the case of this number of one victim")
    parser.add_argument("--sabotage", choices=list(SABOTAGES), help="remove a guard: must exit 1")
    parser.add_argument("--first", action="store_true", help="end a sabotage with its first case")
    return parser.parse_args()


def _run(part: str, name: str, options: argparse.Namespace) -> Sequence[Tally]:
    terms = {"is_short": options.short, "only": options.case}
    if part == "sabotage":
        return [sabotage.run_one(name, SABOTAGES[name], options.seed)]
    if part == "damage":
        return [damage.run(options.seed, name, **terms)]
    if part == "calls":
        return [calls.run(options.seed, VICTIMS[name], **terms)]
    return power.run(options.seed, VICTIMS[name], **terms)


def _complaints(seed: int, tally: Tally) -> Iterator[str]:
    for complaint in tally.complaints[:_MOST_SHOWN]:
        yield f"{complaint.wrong.value}: {tally.part}: {complaint.what}"
        yield f"    replay with ci/crash {tally.replay} --seed {seed} --case {complaint.case}"
    rest = len(tally.complaints) - _MOST_SHOWN
    if rest > 0:
        yield f"{tally.part}: and {rest} complaints more"


if __name__ == "__main__":
    sys.exit(main())
