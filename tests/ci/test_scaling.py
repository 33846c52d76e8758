"""The benchmark of growing worlds: its model finds what made the steps, and its programs run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import why_not

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from scaling_model import HEADERS, Cell, fit

ROOT = Path(__file__).parents[2]
VECTOR = 4_000_000
COST = 2e-9
CROWDING = {2: 1.25, 4: 2.5}
ALONE = {100: 0.1, 400: 0.38}


def steps(*, noise: float = 0.0) -> dict[Cell, float]:
    """Return the steps that the model gives, one in two of them longer by a share."""
    found = {Cell(1, batch, 0.0): seconds for batch, seconds in ALONE.items()}
    for workers, crowding in CROWDING.items():
        for batch, seconds in ALONE.items():
            for gbit in (1.0, 10.0):
                on_link = 8 * HEADERS / (gbit * 1e9)
                moved = 2 * (workers - 1) / workers * VECTOR
                step = crowding * seconds + moved * (on_link + COST)
                found[Cell(workers, batch, gbit)] = step * (1 + noise * (len(found) % 2))
    return found


def test_model_finds_what_the_steps_were_made_of() -> None:
    found = fit(steps(), VECTOR)

    assert found.cost == pytest.approx(COST, rel=0.01)
    assert found.crowding == pytest.approx(CROWDING, rel=0.01)
    assert max(map(abs, found.errors.values())) < 0.001


def test_model_has_no_crowding_on_machines_of_their_own() -> None:
    found = fit(steps(), VECTOR)

    moved = 2 * 7 / 8 * VECTOR
    expected = ALONE[100] + moved * (8 * HEADERS / 1e9 + COST)
    assert found.step(Cell(8, 100, 1.0)) == pytest.approx(expected, rel=0.01)
    assert found.step(Cell(1, 100, 1.0)) == ALONE[100]


def test_model_tells_how_far_it_is_from_steps_that_it_cannot_explain() -> None:
    found = fit(steps(noise=0.2), VECTOR)

    assert max(map(abs, found.errors.values())) > 0.05
    assert "at most" in found.error_text()


@pytest.mark.extended  # minutes of a benchmark, whose parts the tests above have
@pytest.mark.mpi
@pytest.mark.tensorflow
@pytest.mark.process
def test_jobs_of_one_and_two_hosts_are_timed_and_modelled() -> None:
    if reason := why_not():
        pytest.skip(reason)
    support = ROOT / "tests" / "support"
    small = ["--rounds", "1", "--batches", "4", "8", "--gbit", "10", "--images", "16"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "scaling.py"), *small],
        env={**os.environ, "PYTHONPATH": f"{support}:{support / 'clusters'}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for cell in ("1 x 4, no link", "1 x 8, no link", "2 x 4, 10 Gbit/s", "2 x 8, 10 Gbit/s"):
        assert any(line.startswith(f"holdfast: {cell}: ") for line in lines), done.stdout
    assert any(line.startswith("  10 Gbit/s, batch 8, (1, 2, 4, 8) workers: ") for line in lines)
    assert "horovod" not in done.stdout
