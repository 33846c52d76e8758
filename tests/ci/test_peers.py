"""The benchmark beside Horovod and others: its tables hold what was measured, and it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import peers_table

ROOT = Path(__file__).parents[2]


def record(*figures: tuple[int, str, float], **about: object) -> dict[str, Any]:
    """Return what was measured: speeds of the dnn, each of a round and a way."""
    common = {"what": "samples/s", "model": "dnn", "link": "host", "batch": 128, **about}
    named = [{"round": n, "way": way, "value": value, **common} for n, way, value in figures]
    return {"date": "2026-01-02", "commands": ["python x"], "machine": "2 cores", "figures": named}


def row(table: str, begin: str) -> list[str]:
    (line,) = (line for line in table.splitlines() if line.startswith(f"| {begin}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_ratio_is_of_each_round_before_the_median() -> None:
    speeds = record(
        (0, "ours-2", 100.0), (0, "tape", 50.0),
        (1, "ours-2", 10.0), (1, "tape", 10.0),
        (2, "ours-2", 30.0), (2, "tape", 20.0),
    )  # fmt: skip

    assert row(peers_table.markdown(speeds), "dnn")[1:3] == ["30", "1.50 (1.00 to 2.00)"]


def test_round_without_the_peer_has_no_ratio() -> None:
    speeds = record((0, "ours-2", 100.0), (1, "ours-2", 300.0), (1, "tape", 100.0))

    table = peers_table.markdown(speeds)
    assert row(table, "dnn")[1:] == ["200", "3.00 (3.00 to 3.00)"]
    assert table.splitlines()[0] == "2026-01-02, 2 cores: `python x`."
