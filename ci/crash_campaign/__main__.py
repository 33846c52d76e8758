"""Crash the checkpoint layer on real system calls and real file systems, and count the losses.

Usage: ``ci/crash [--short] [--seed S] [--part PART] [--case N] [--sabotage HOW]``.

Parts: ``calls`` kills and fails every system call of a save, ``power`` cuts the power on ext4
and XFS, ``damage`` spoils committed checkpoints.  Everything follows from the seed, so
``--part PART --seed S --case N`` replays a case.  Exits 1 if a single case went wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable

import calls
import damage
import power
from sabotage import SABOTAGES
from tally import Tally, table

PARTS: dict[str, Callable[..., list[Tally]]] = {
    "calls": calls.run,
    "power": power.run,
    "damage": damage.run,
}
_MOST_SHOWN = 20


def main() -> int:
    """Run the campaign and print its table; return the exit code."""
    parser = argparse.ArgumentParser(prog="ci/crash", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="a sample, in well under a minute")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="all if not given")
    parser.add_argument("--case", type=int, help="replay the case of this number of one part")
    parser.add_argument("--sabotage", choices=list(SABOTAGES), help="break the layer: must exit 1")
    options = parser.parse_args()
    if options.sabotage:
        SABOTAGES[options.sabotage]()
    os.environ["PATH"] += ":/usr/sbin:/sbin"  # mkfs is there, but not on every user's PATH
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so clean up

    print(f"seed {options.seed}", flush=True)
    tallies: list[Tally] = []
    is_bad = False
    for part in options.part or PARTS:
        began = time.monotonic()
        found = PARTS[part](options.seed, is_short=options.short, only=options.case)
        print(f"{part}: {time.monotonic() - began:.0f} s", flush=True)
        tallies += found
        # A machine may lack what a part needs; the whole campaign has not passed there.
        did_run = options.short or any(tally.cases for tally in found)
        is_bad = is_bad or not did_run or any(tally.complaints for tally in found)
        for tally in found:
            _complain(part, options.seed, tally)
    print(table(tallies))
    return 1 if is_bad else 0


def _complain(part: str, seed: int, tally: Tally) -> None:
    for complaint in tally.complaints[:_MOST_SHOWN]:
        print(f"{complaint.wrong.value}: {tally.part}: {complaint.what}")
        print(f"    replay with ci/crash --part {part} --seed {seed} --case {complaint.case}")
    rest = len(tally.complaints) - _MOST_SHOWN
    if rest > 0:
        print(f"{tally.part}: and {rest} complaints more")


if __name__ == "__main__":
    sys.exit(main())
