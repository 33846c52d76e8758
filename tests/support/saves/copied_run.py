"""A run whose steps are copied to a second place, without a job."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from configs import worker_config
from host_saves import RUN, begin_run
from whole_save import save

from holdfast.checkpoint.manifest import EpochMetrics, Header
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run.place import Place
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.saving.copier import Copier
from holdfast.runtime.saving.taken_copies import take_copies


class Copied:
    """A run, its place of copies, and copiers one after the other."""

    def __init__(self, run_dir: Path, url: str, run_id: str = RUN) -> None:
        begin_run(run_dir, run_id)
        self.run_dir, self.url, self.run_id = run_dir, url, run_id
        self.store = CheckpointStore(run_dir)
        self.said: list[str] = []

    def save(self, *steps: int, loss: float | None = None) -> None:
        for step in steps:
            cursor = {} if loss is None else EpochMetrics(1, step, {"loss": loss}).into({})
            state = {"a": np.arange(3000) + step}
            save(self.store, state, header=Header(self.run_id, 1, step), writers=2, cursor=cursor)

    def copier(
        self, retention: Retention | None = None, moves: Callable[[], None] = lambda: None
    ) -> Copier:
        config = worker_config(run_dir=self.run_dir, run_id=self.run_id, copy_to=self.url)
        copier = Copier(config, Place(self.url), self.said.append, moves)
        copier.retention = retention
        return copier

    def copy(self, retention: Retention | None = None) -> list[int]:
        """Let a new copier do all that there is; return what it has copied, in its order."""
        copier = self.copier(retention)
        return [copied.step for copied in iter(copier.work, None)]

    def there(self) -> tuple[int, ...]:
        return Place(self.url).store.steps()

    def take(self, **wishes: Any) -> tuple[str, ...]:
        wishes = {"say": lambda _: None, "refuse": lambda _: None, "is_fresh": False, **wishes}
        return take_copies(RunDirectory(self.run_dir), self.url, **wishes)

    def lose(self) -> None:
        """Remove the run directory, and make an empty one."""
        shutil.rmtree(self.run_dir)
        self.run_dir.mkdir()
