from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.runtime.run.journal import Journal, next_generation
from holdfast.runtime.run.run_directory import RunDirectory


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def write_journal(directory: RunDirectory, generation: int) -> None:
    journal = Journal(directory.journal_path, run_id="r", source="supervisor")
    journal.record("launch", generation=generation)
    journal.close()


def test_first_generation_of_a_new_run_is_1(directory: RunDirectory) -> None:
    assert next_generation(directory) == 1


@pytest.mark.parametrize(
    ("name", "following"),
    [
        (".tmp-000000000040-g7-a1", 8),
        (".bad-000000000040-g9-a2", 10),
        (".tmp-000000000040", 4),
        ("something else", 4),
    ],
)
def test_saves_tell_generations_that_a_lost_journal_does_not(
    directory: RunDirectory, name: str, following: int
) -> None:
    write_journal(directory, 3)
    (directory.checkpoints_path / name).mkdir(parents=True)

    assert next_generation(directory) == following


@pytest.mark.parametrize(
    ("manifest", "following"),
    [
        (json.dumps({"generation": 12}), 13),
        (json.dumps({"generation": "12"}), 1),
        (json.dumps([12]), 1),
        ("torn", 1),
        (None, 1),
    ],
)
def test_manifest_of_the_newest_step_tells_its_generation(
    directory: RunDirectory, manifest: str | None, following: int
) -> None:
    for step, content in ((20, json.dumps({"generation": 99})), (40, manifest)):
        folder = directory.checkpoints_path / f"step-{step:012d}"
        folder.mkdir(parents=True)
        if content is not None:
            (folder / "MANIFEST.json").write_text(content)

    assert next_generation(directory) == following


def test_step_that_was_really_saved_tells_its_generation(directory: RunDirectory) -> None:
    """Under its JSON a manifest has a line with a digest."""
    save(CheckpointStore(directory.path), {"a": np.zeros(3)}, header=Header("r", 9, 40))

    assert next_generation(directory) == 10


def test_journal_counts_where_it_knows_more(directory: RunDirectory) -> None:
    (directory.checkpoints_path / ".tmp-000000000040-g7-a1").mkdir(parents=True)
    write_journal(directory, 11)

    assert next_generation(directory) == 12
