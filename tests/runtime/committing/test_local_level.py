"""Saves go to a local directory first; some of them drain to the run directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.record import Header
from holdfast.checkpoint.store.save import save
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.verification import verify_step
from holdfast.runtime.committing.local_level import LocalLevel, LocalTerms, local_directory

RUN = "a" * 16


class Level:
    """A local level, the run's store, and steps that are saved to the local one."""

    def __init__(self, base: Path, every_saves: int | None, every_s: float | None) -> None:
        self.run = CheckpointStore(base / "run")
        directory = local_directory(base / "local", RUN)
        directory.mkdir(parents=True)
        terms = LocalTerms(directory, every_saves, every_s)
        self.level = LocalLevel(terms, self.run, RUN)

    def save(self, step: int, now: float = 0.0) -> None:
        state = {"a": np.full(5000, step)}
        save(self.level.store, state, header=Header(RUN, 1, step), writers=2)
        self.level.committed(step, now)


def test_local_directories_of_two_runs_differ() -> None:
    base = Path("/local")

    assert local_directory(base, "one") != local_directory(base, "two")
    assert local_directory(base, "one").parent == base


def test_terms_survive_their_way_as_json() -> None:
    terms = LocalTerms(Path("/local/x"), every_saves=None, every_s=90.0)

    assert LocalTerms.of(terms.as_json()) == terms


def test_every_third_save_drains(tmp_path: Path) -> None:
    found = Level(tmp_path, every_saves=3, every_s=None)
    due = []
    for step in range(1, 8):
        found.save(step)
        if found.level.is_due(0.0):
            due.append(step)
            found.level.drain(step, 0.0)

    assert due == [3, 6]
    assert found.run.steps() == (6, 3)
    assert [verify_step(found.run, step).reason for step in (3, 6)] == [None, None]


def test_save_drains_when_its_time_has_come(tmp_path: Path) -> None:
    found = Level(tmp_path, every_saves=None, every_s=60.0)
    found.save(1, now=100.0)
    assert not found.level.is_due(159.0)
    assert found.level.is_due(160.0)
    found.level.drain(1, 160.0)
    assert not found.level.is_due(1000.0), "nothing was saved since"
    found.save(2, now=200.0)

    assert [found.level.is_due(now) for now in (219.0, 220.0)] == [False, True]


def test_step_that_the_job_before_has_left_drains_at_once(tmp_path: Path) -> None:
    """Its job has resumed from there, and the host may be gone at any time."""
    before = Level(tmp_path, every_saves=3, every_s=None)
    before.save(1)

    found = LocalLevel(
        LocalTerms(before.level.store.directory.parent, every_saves=3), before.run, RUN
    )

    assert found.is_due(0.0)
    found.drain(1, 0.0)
    assert before.run.steps() == (1,)
    again = LocalLevel(
        LocalTerms(before.level.store.directory.parent, every_saves=3), before.run, RUN
    )
    assert not again.is_due(0.0), "the run directory has it"


def test_step_that_has_drained_is_not_written_again(tmp_path: Path) -> None:
    found = Level(tmp_path, every_saves=1, every_s=None)
    found.save(4)
    found.level.drain(4, 0.0)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}

    found.level.drain(4, 1.0)

    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_damaged_local_step_never_reaches_the_run_directory(tmp_path: Path) -> None:
    found = Level(tmp_path, every_saves=1, every_s=None)
    found.save(4)
    shard = next((found.level.store.directory / "step-000000000004").glob("shard-00001*"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)

    with pytest.raises(CheckpointError):
        found.level.drain(4, 0.0)

    assert found.run.names() == ()
    assert found.level.is_due(0.0), "the next save tries again"


def test_two_newest_steps_stay_in_the_local_directory(tmp_path: Path) -> None:
    found = Level(tmp_path, every_saves=100, every_s=None)
    for step in (1, 2, 3, 4):
        found.save(step)

    assert found.level.prune(0.0) == ()
    assert found.level.store.steps() == (4, 3)
