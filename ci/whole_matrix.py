"""The whole matrix of tests/support/matrix.py, one line a cell; see ci/matrix."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from matrix import CELLS, run_cell
from workload import remembering


def main(words: list[str], root: str) -> int:
    """Run the cells whose names hold all ``words``; return the exit code."""
    cells = [cell for cell in CELLS if set(words) <= set(str(cell).split())]
    undisturbed = remembering(lambda name: Path(tempfile.mkdtemp(prefix=name, dir=root)))
    failed = 0
    for number, cell in enumerate(cells, start=1):
        try:
            seconds = run_cell(cell, Path(tempfile.mkdtemp(dir=root)), undisturbed)
            outcome = f"whole after {seconds:.1f} s"
        except (AssertionError, TimeoutError) as error:
            failed += 1
            outcome = f"FAILED: {error}"
        print(f"matrix: {number} of {len(cells)}: {cell}: {outcome}", flush=True)
    print(f"matrix: {failed} of {len(cells)} cells failed")
    return 1 if failed else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="holdfast-matrix-") as name:
        sys.exit(main(sys.argv[1:], name))
