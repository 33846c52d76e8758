"""Train on real data, kill workers until none is left, and compare the final bytes.

A small convolutional network learns scikit-learn's handwritten digits with 4 workers.
Rank 0 and another worker are killed on the way, then the other two at once.  The job goes
on by itself: first in place, then from its checkpoint on 2 new workers.  An undisturbed
run on 1 worker must end with the same bytes.  Exits 1 if one of these checks fails.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "01_digits.py"
SETTINGS = ("--microbatches", "4", "--threads", "1", "--seed", "2016")
FAULTS = (
    "kill worker=0 step=40 site=reduce",
    "kill worker=2 step=70 site=compute",
    "kill worker=1 step=110 site=compute",
    "kill worker=3 step=110 site=compute",
)

Report = dict[str, Any]


def main() -> int:
    """Run both jobs, print their outcomes, and return the exit code."""
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as scratch:
        disturbed, seconds = _train(Path(scratch) / "disturbed", 4, FAULTS)
        undisturbed, _ = _train(Path(scratch) / "undisturbed", 1, ())
        subprocess.run(["holdfast", "report", str(Path(scratch) / "disturbed")], check=True)
    print("\nsha256 of the final state")
    print(f"  4 workers, all killed  {disturbed['final_sha256']}")
    print(f"  1 worker, undisturbed  {undisturbed['final_sha256']}")
    wrong = _wrong(disturbed, undisturbed)
    for sentence in wrong:
        print(f"not so: {sentence}")
    if not wrong:
        print(f"4 of 4 workers died, and the bytes are the same ({seconds:.0f} s).")
    return 1 if wrong else 0


def _train(run_dir: Path, workers: int, faults: tuple[str, ...]) -> tuple[Report, float]:
    """Run a job to its end; return its report and how many seconds it took."""
    inject = [word for fault in faults for word in ("--inject", fault)]
    began = time.monotonic()
    command = ["holdfast", "run", "-n", str(workers), "--run-dir", str(run_dir)]
    subprocess.run([*command, *SETTINGS, *inject, str(SCRIPT)], check=False)
    seconds = time.monotonic() - began
    report = subprocess.run(
        ["holdfast", "report", str(run_dir), "--json"], check=True, capture_output=True
    )
    return json.loads(report.stdout), seconds


def _wrong(disturbed: Report, undisturbed: Report) -> list[str]:
    """Return a sentence for each check that fails."""
    died = sorted(failure["worker"] for failure in disturbed["failures"])
    in_place = sorted(lost for recovery in disturbed["recoveries"] for lost in recovery["lost"])
    sizes = [len(relaunch["workers"]) for relaunch in disturbed["relaunches"]]
    checks = {
        f"both jobs end well ({disturbed['reason']}; {undisturbed['reason']})": (
            disturbed["exit_code"] == undisturbed["exit_code"] == 0
        ),
        f"workers 0 to 3 died, and no other worker (died: {died})": died == [0, 1, 2, 3],
        f"workers 0 and 2 were survived in place ({in_place})": in_place == [0, 2],
        f"one relaunch, on all 4 workers ({sizes})": sizes == [4],
        "the undisturbed run was undisturbed": not undisturbed["failures"],
        "every epoch used every sample once": _is_exact(disturbed) and _is_exact(undisturbed),
        "the final bytes are equal": disturbed["final_sha256"] == undisturbed["final_sha256"],
    }
    return [sentence for sentence, holds in checks.items() if not holds]


def _is_exact(report: Report) -> bool:
    return bool(report["epochs"]) and all(epoch["exact"] for epoch in report["epochs"])


if __name__ == "__main__":
    sys.exit(main())
