"""Some cells of the matrix of victims, strikes and moments; ``ci/matrix`` runs them all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from extended import extended
from matrix import CELLS, Cell, run_cell
from striker import Kind, Target
from workload import Undisturbed

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

SEED = 20261122
SAMPLE = random.Random(SEED).sample(CELLS, 10)
HELPERS = (Target.POOL, Target.WRITER)


def sampled(cell: Cell) -> object:
    """Leave all but some kills to ``ci/matrix``, which runs all cells.

    Other jobs do without helpers in test_orders.py and test_snapshots.py.
    """
    is_here = cell.strike is Kind.KILL and cell.victim not in HELPERS
    return cell if is_here else extended(cell)


@pytest.mark.parametrize("cell", [sampled(cell) for cell in SAMPLE], ids=str)
def test_job_survives_whatever_happens_to_its_processes(
    tmp_path: Path, undisturbed: Undisturbed, cell: Cell
) -> None:
    run_cell(cell, tmp_path, undisturbed)
