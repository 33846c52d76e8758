"""A writer dies in the middle of a save: the next one goes on with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_saves import saved_steps
from host_simulation import HostSimulation


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostSimulation]:
    """Return a host of two workers and two buffers."""
    with contextlib.closing(HostSimulation(tmp_path, monkeypatch, seed=0)) as host:
        host.launch(workers=2, buffers=2)
        yield host


def test_save_goes_on_with_the_next_writer_from_the_parts_that_were_told(
    host: HostSimulation, tmp_path: Path
) -> None:
    step = host.begin()
    host.deliver_from(0)
    host.link.replace("killed")

    host.deliver_from(1)

    assert saved_steps(tmp_path) == (step,)
    assert set(host.answers.values()) == {1}


def test_complete_save_at_which_a_writer_died_is_committed_though_a_later_one_has_begun(
    host: HostSimulation, tmp_path: Path
) -> None:
    lost = host.begin()
    host.deliver_from(0)
    host.processes[-1].files.dies_in = 5
    host.deliver_from(1)
    assert saved_steps(tmp_path) == ()
    host.begin()
    host.deliver_from(0)

    assert host.settle() == lost

    assert saved_steps(tmp_path) == (lost,)


def test_incomplete_save_of_a_lost_writer_is_answered_by_the_plan_of_the_next_world(
    host: HostSimulation,
) -> None:
    """With one buffer the survivors wait for this answer."""
    host.begin()
    host.deliver_from(0)
    host.link.replace("killed")

    host.lose_a_worker()
    host.deliver_from(0)

    assert set(host.answers.values()) == {1}


def test_late_part_of_a_save_that_was_answered_leaves_nothing_to_wait_for(
    host: HostSimulation,
) -> None:
    """Else the agent would give up a writer that has nothing to do."""
    host.begin()
    host.deliver_from(0)
    host.lose_a_worker(is_heard=True)
    host.deliver_from(0)
    assert set(host.answers.values()) == {1}

    host.deliver_from(1)
    host.link.look(now=1e6)

    assert host.link.pid is not None
    assert len(host.processes) == 1
