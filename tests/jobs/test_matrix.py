"""Some cells of the matrix of victims, strikes and moments; ``ci/matrix`` runs them all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from extended import extended
from matrix import CELLS, Cell, Moment, run_cell
from striker import Kind, Target
from workload import Undisturbed

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

SEED = 20261122
SAMPLE = random.Random(SEED).sample(CELLS, 10)
STANDING = (Kind.STOP, Kind.STOP_CONT)
HELPERS = (Target.POOL, Target.WRITER)


def sampled(cell: Cell) -> object:
    """Leave some to ``ci/matrix``, which runs all cells.

    These are waited for longest, or helpers that other jobs do without in test_orders.py and
    test_snapshots.py.
    """
    is_long = cell.strike in STANDING and cell.moment is not Moment.REPAIR
    return extended(cell) if is_long or cell.victim in HELPERS else cell


@pytest.mark.parametrize("cell", [sampled(cell) for cell in SAMPLE], ids=str)
def test_job_survives_whatever_happens_to_its_processes(
    tmp_path: Path, undisturbed: Undisturbed, cell: Cell
) -> None:
    run_cell(cell, tmp_path, undisturbed)
