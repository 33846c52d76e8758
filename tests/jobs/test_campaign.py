"""A short form of ``ci/campaign.py``: random faults, no wrong byte, nothing left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).resolve().parents[2] / "ci" / "campaign.py"


@pytest.mark.mpi
@pytest.mark.timeout(1200)
@pytest.mark.extended
def test_random_failures_change_no_byte() -> None:
    """Deaths at random moments; test_deaths.py has each kind and site."""
    done = subprocess.run(
        [sys.executable, CAMPAIGN, "--seed", "2003", "--runs", "8"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
