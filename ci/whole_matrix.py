"""The whole matrix of tests/support/matrix.py, one line a cell; see ci/matrix."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from matrix import CELLS, run_cell
from workload import Workload, request_of

from holdfast.testing import start_job


def main(words: list[str]) -> int:
    """Run the cells whose names hold all ``words``; return the exit code."""
    cells = [cell for cell in CELLS if set(words) <= set(str(cell).split())]
    known: dict[Workload, str] = {}

    def undisturbed(workload: Workload) -> str:
        if workload not in known:
            with tempfile.TemporaryDirectory() as folder:
                request = request_of(workload, Path(folder) / "run", workers=1)
                with start_job(request) as job:
                    known[workload] = str(job.wait().sha256)
        return known[workload]

    failed = 0
    for number, cell in enumerate(cells, start=1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcome = f"whole after {run_cell(cell, Path(folder), undisturbed):.1f} s"
            except (AssertionError, TimeoutError) as error:
                failed += 1
                outcome = f"FAILED: {error}"
        print(f"matrix: {number} of {len(cells)}: {cell}: {outcome}", flush=True)
    print(f"matrix: {failed} of {len(cells)} cells failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
