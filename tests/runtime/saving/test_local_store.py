"""A restore reads the local directory as it is; the run directory gets the step later."""

from __future__ import annotations

from pathlib import Path

import pytest
from resumed_run import Run

from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run.journal import HistoryReader


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a run with step 10 in its directory, and step 20 on a disk of the host."""
    found = Run(tmp_path / "run")
    found.local_dir = tmp_path / "local"
    monkeypatch.setattr(
        "holdfast.runtime.training.restoring._numerics_of", lambda _: found.numerics
    )
    found.save(10, 1.0, writers=2)
    move_to_local(found, 20, 2.0)
    return found


def local_store(run: Run) -> CheckpointStore:
    assert run.local_dir is not None
    return CheckpointStore(run.local_dir / "holdfast-run")


def move_to_local(run: Run, step: int, fill: float) -> None:
    local = local_store(run).directory
    local.mkdir(parents=True, exist_ok=True)
    run.save(step, fill, writers=2).rename(local / step_name(step))


def damage(store: CheckpointStore, step: int) -> None:
    shard = sorted((store.directory / step_name(step)).glob("*.h5"))[1]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


@pytest.mark.parametrize("ranks", [1, 3])
def test_newer_local_step_is_read_where_it_is(run: Run, ranks: int) -> None:
    assert run.restore(ranks) == [(20, 2.0)] * ranks

    assert run.store.steps() == (10,), "nobody has waited for a copy"
    assert run.journal("mended") == []
    assert [record["on_disk"] for record in run.journal("restored")] == [True]
    assert run.places == [(20, 20)] * ranks, "it is saved, but only on the host's disk"


def test_step_of_both_places_that_is_damaged_on_the_host_comes_from_the_run_directory(
    run: Run,
) -> None:
    run.save(20, 2.0, writers=2)
    damage(local_store(run), 20)

    assert run.restore(2) == [(20, 2.0)] * 2

    assert run.places == [(20, None)] * 2
    (rejected,) = run.journal("rejected")
    assert rejected["place"] == str(local_store(run).directory.parent)
    assert run.contexts[0].rejected == set(), "that of the run directory is sound"
    assert HistoryReader(run.directory / "journal.jsonl").read().rejected == ()


def test_step_that_only_the_host_has_and_that_is_damaged_sends_all_to_the_older_one(
    run: Run,
) -> None:
    damage(local_store(run), 20)

    assert run.restore(2) == [(10, 1.0)] * 2
    assert run.places == [(10, None)] * 2


def test_damage_in_both_places_is_mended_from_both(run: Run) -> None:
    run.save(20, 2.0, writers=2)
    damage(local_store(run), 20)
    first = sorted((run.store.directory / step_name(20)).glob("*.h5"))[0]
    first.write_bytes(first.read_bytes()[:-9000])

    assert run.restore(2) == [(20, 2.0)] * 2
    assert run.places == [(20, None)] * 2
    assert len(run.journal("mended")) == 1


def test_host_without_the_local_directory_goes_on_from_the_run_directory(run: Run) -> None:
    run.local_dir = run.directory.parent / "another host"

    assert run.restore(2) == [(10, 1.0)] * 2


def test_local_directory_that_cannot_be_read_costs_a_line(run: Run) -> None:
    store = local_store(run).directory
    store.rename(store.with_name("aside"))
    store.write_bytes(b"no directory")

    assert run.restore(2) == [(10, 1.0)] * 2
    (failed,) = run.journal("mend_failed")
    assert failed["holder"] == str(store.parent)
