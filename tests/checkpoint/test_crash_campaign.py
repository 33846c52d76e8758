"""A short form of ``ci/crash``: nothing is lost, and the campaign would notice if it were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from extended import extended

CAMPAIGN = Path(__file__).resolve().parents[2] / "ci" / "crash_campaign"


def crash(*options: str) -> tuple[int, str]:
    """Run the short campaign; return its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, CAMPAIGN, "--short", "--seed", "2003", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    # Not every machine has strace, or lets anybody mount.
    if "skipped: " in said and done.returncode == 0:
        pytest.skip(said[said.index("skipped: ") :].strip())
    return done.returncode, said


@pytest.mark.process
@pytest.mark.parametrize("part", ["calls", "power", extended("damage")])  # as ci/crash does
def test_crashes_lose_nothing_and_no_save_lies(part: str) -> None:
    code, said = crash("--part", part)

    assert code == 0, said


@pytest.mark.process
@pytest.mark.parametrize(
    ("part", "sabotage"),
    [
        extended("calls", "no-errors"),
        extended("power", "no-fsync"),
        ("power", "no-directory-fsync"),
        extended("damage", "no-digests"),
    ],
)
def test_campaign_notices_a_checkpoint_layer_that_is_broken(part: str, sabotage: str) -> None:
    code, said = crash("--part", part, "--sabotage", sabotage)

    assert code == 1, said
    assert "replay with" in said
