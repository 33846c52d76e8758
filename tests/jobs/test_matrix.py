"""Ten cells of the matrix of victims, strikes and moments; ``ci/matrix`` runs them all."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from matrix import CELLS, Cell, run_cell
from workload import Undisturbed

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]

SEED = 20261122
SAMPLE = random.Random(SEED).sample(CELLS, 10)


@pytest.mark.parametrize("cell", SAMPLE, ids=str)
def test_job_survives_whatever_happens_to_its_processes(
    tmp_path: Path, undisturbed: Undisturbed, cell: Cell
) -> None:
    run_cell(cell, tmp_path, undisturbed)
