"""No descriptor of a save is lost, and none is closed before its message has left."""

from __future__ import annotations

import os
import signal

import pytest
from process_agent import AgentOfProcess

pytestmark = pytest.mark.process


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_descriptors_stay_as_many_over_saves_deaths_and_layouts(agent: AgentOfProcess) -> None:
    for attempt in (1, 2):
        agent.save(attempt)
    before = descriptors()

    for attempt in range(3, 103):
        assert agent.save(attempt)["kind"] == "saved"
    assert descriptors() == before

    for attempt in range(103, 106):
        agent.write_part(attempt, 0)
        agent.kill_writer()
        assert agent.save(attempt + 10)["kind"] == "saved"
    assert descriptors() == before

    for shards in (3, 4, 5):
        agent.end_launch()
        agent.launch(1, shards=shards)
        assert agent.save(100 * shards)["kind"] == "saved"
        agent.write_part(100 * shards + 1, 0)
    assert descriptors() <= before


def test_descriptors_stay_open_until_their_message_has_left(agent: AgentOfProcess) -> None:
    """A writer that commits reads nothing, so messages of many workers wait."""
    writer = agent.stop_writer()
    for attempt in range(1, 400):
        agent.write_part(attempt, 0)
    waiting = descriptors()

    os.kill(writer, signal.SIGCONT)
    assert agent.save(attempt=500)["kind"] == "saved"

    assert agent.link.pid == writer, "no descriptor was gone when its turn came"
    agent.save(attempt=501)
    assert descriptors() < waiting
