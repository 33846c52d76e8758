"""Whatever dies and whenever: no step is wrong, none that was saved is missing, none is lost."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from host_simulation import HostSimulation

ACTIONS = 60


@pytest.mark.parametrize(
    "seed",
    [
        *range(30),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(30, 150)),
    ],
)
def test_any_order_of_saves_and_deaths_keeps_every_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with contextlib.closing(HostSimulation(tmp_path, monkeypatch, seed)) as host:
        for _ in range(ACTIONS):
            host.act()
        host.end()
