"""Each guard of the product is removed in turn, in a campaign of its own that has to notice.

A campaign that ends well without a guard is broken, or the guard guards nothing.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sabotages import Sabotage
from tally import Tally, Wrong

_ENDS_WITHIN_S = 1200.0
_CAUGHT = 1
"""The exit code of a campaign that has found something; an error has the same one."""


def run_one(name: str, sabotage: Sabotage, seed: int, *more: str) -> Tally:
    """Run the campaign of one sabotage, with ``more`` options."""
    tally = Tally(name, f"--part sabotage --victim {name}")
    options = ["--part", sabotage.part, "--victim", sabotage.victim, "--seed", str(seed)]
    command = [sys.executable, str(Path(__file__).parent), "--sabotage", name, "--first"]
    done = subprocess.run(
        [*command, *options, *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=_ENDS_WITHIN_S,
    )
    tally.cases = 1
    if "skipped: " in done.stdout:
        tally.skipped = done.stdout[done.stdout.index("skipped: ") + len("skipped: ") :].strip()
        return tally
    if done.returncode != _CAUGHT or "replay with" not in done.stdout:
        last = (done.stdout + done.stderr)[-800:]
        tally.complain(Wrong.OTHER, 0, f"nobody has noticed; exit code {done.returncode}: {last}")
    else:
        kinds = {wrong.value for wrong in Wrong}
        found = (line.split(":")[0] for line in done.stdout.splitlines())
        kind = next(name for name in found if name in kinds)
        tally.note(f"noticed by {sabotage.part} of {sabotage.victim} as {kind}")
    return tally
