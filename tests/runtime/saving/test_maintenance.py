"""Old steps are pruned, beside the saves that go on."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from committing_report import StrikeResult
from holders import damage
from host_saves import LAUNCH, begin_run, plan_of
from whole_save import save

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving.committer import CheckpointMaintenance

BOUND_S = 60.0


class Care:
    """The steps of a run, and the care of them in one process after the other."""

    def __init__(self, run_dir: Path, **terms: Any) -> None:
        begin_run(run_dir)
        self.store = CheckpointStore(run_dir)
        self.told = StrikeResult()
        usual: dict[str, Any] = {"retention": Retention(2), "generation": LAUNCH}
        self._plan = plan_of(run_dir, **(usual | terms))

    def begin(self, **ways: Any) -> CheckpointMaintenance:
        return CheckpointMaintenance(self._plan, self.told, **ways)

    def add(self, *steps: int) -> None:
        for step in steps:
            save(self.store, {"a": np.full(1000, step)}, header=Header("run", 1, step))

    def commit(self, *steps: int) -> None:
        """Save steps, and let the care end what follows."""
        self.add(*steps)
        maintenance = self.begin()
        for step in steps:
            maintenance.committed(step)
        maintenance.close(BOUND_S)


def test_damage_that_stops_the_pruning_is_recorded(tmp_path: Path) -> None:
    care = Care(tmp_path / "run")
    care.add(10, 20, 30)
    damage(care.store, 20)
    damage(care.store, 30)

    care.begin().close(BOUND_S)

    assert care.store.steps() == (30, 20, 10)
    reasons = [record["reason"].split(":")[0] for record in care.told.of("prune_failed")]
    assert reasons == ["step 30 does not verify, so it replaces no older step"]


def test_step_that_a_restore_has_rejected_does_not_count_until_it_is_saved_again(
    tmp_path: Path,
) -> None:
    care = Care(tmp_path / "run", unsound=frozenset({20}))
    care.add(10, 20)
    damage(care.store, 20)

    care.commit(30)
    assert care.store.steps() == (30, 20, 10)

    shutil.rmtree(care.store.directory / "step-000000000020")
    care.commit(20)
    assert care.store.steps() == (30, 20)


def test_staging_of_dead_launches_goes_at_once_and_that_of_this_one_stays(tmp_path: Path) -> None:
    care = Care(tmp_path / "run")
    for generation in (5, 6, 7, 8):
        care.store.staging(30, generation, 1).open()

    care.begin().close(BOUND_S)

    assert care.store.names() == (".tmp-000000000030-g7-a1", ".tmp-000000000030-g8-a1")


class SlowRemoval(FileSystem):
    """Whoever lists the steps or removes a file of one waits for the test; listings count."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.has_begun, self.goes_on = threading.Event(), threading.Event()
        self.listings = 0

    def list(self, path: Path) -> tuple[str, ...]:
        self.listings += 1
        return super().list(path)

    def wait(self, path: Path) -> None:
        self.has_begun.set()
        self.goes_on.wait(BOUND_S)

    def unlink(self, path: Path) -> None:
        self.wait(path)
        super().unlink(path)


def test_steps_that_wait_for_the_care_are_pruned_at_once(tmp_path: Path) -> None:
    """A run directory that is slow gets one pruning for all the saves meanwhile."""
    care, files = Care(tmp_path / "run"), SlowRemoval(tmp_path / "run")
    care.add(1, 2, 3)
    maintenance = care.begin(files=files)
    assert files.has_begun.wait(BOUND_S)
    before = files.listings
    for step in range(10, 110, 10):
        care.add(step)
        maintenance.committed(step)

    files.goes_on.set()
    maintenance.close(BOUND_S)

    assert care.store.steps() == (100, 90)
    assert files.listings - before < 40, "each pruning lists a few directories"


def test_care_that_was_given_up_takes_nothing_that_is_staged_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for no longer than told, and the next care completes the removal."""
    care, slow = Care(tmp_path / "run"), SlowRemoval(tmp_path / "run")
    care.add(1, 2, 3)
    before = set(threading.enumerate())
    monkeypatch.setattr(FileSystem, "unlink", lambda _, path: slow.wait(path))
    maintenance = care.begin()
    assert slow.has_begun.wait(BOUND_S)

    maintenance.close(0.01)
    staged = care.store.directory / str(StagingName(20, LAUNCH - 1, 1))
    staged.mkdir()
    slow.goes_on.set()

    for thread in set(threading.enumerate()) - before:
        thread.join(BOUND_S)
    assert staged.exists()
    assert [name for name in care.store.names() if name.startswith(".del-")] != []


def test_step_that_is_being_read_back_is_read_no_further_and_nothing_goes(tmp_path: Path) -> None:
    """At this rate a step would take minutes."""
    care = Care(tmp_path)
    care.add(1, 2, 3, 4)
    before = set(threading.enumerate())

    care.begin(bytes_per_s=100.0).close(0.0)

    for thread in set(threading.enumerate()) - before:
        thread.join(BOUND_S)
        assert not thread.is_alive()
    assert care.store.steps() == (4, 3, 2, 1)
