"""Anyone of the same user may ask an agent how its job stands; the job does not notice."""

from __future__ import annotations

import pytest
from agent_harness import AgentHarness

from holdfast.runtime.progress.host_report import WorkerReport
from holdfast.runtime.system.channel import connect

pytestmark = pytest.mark.process


def test_agent_tells_its_workers_to_whoever_asks(harness: AgentHarness) -> None:
    harness.launch([3, 5], "leave_when_asked")
    harness.guard(0)
    harness.guard(1)
    for worker in (3, 5):
        harness.wait_for_report(worker, "joined")
    asker = connect(harness.directory / "agent.sock")

    for _ in range(2):  # one connection is enough to ask again and again
        asker.send({"kind": "status"})
        status = asker.receive()

        assert status is not None
        assert status["kind"] == "status"
        assert status["launch"]["workers"] == [3, 5]
        workers = [WorkerReport.of(fields) for fields in status["workers"]]
        found = {one.worker: one for one in workers if one is not None}
        assert {worker: one.step for worker, one in found.items()} == {3: 43, 5: 45}
        assert {one.phase for one in found.values()} == {"training"}
        assert all((one.resident_bytes or 0) > 1 << 20 for one in found.values())
        assert all((one.silent_s or 0.0) < 5.0 for one in found.values())
    asker.close()

    harness.send("request", what="stop")
    for worker in (3, 5):
        assert harness.wait_for("worker_exited", worker=worker)["clean"] is True


def test_agent_without_a_launch_has_no_workers_to_tell(harness: AgentHarness) -> None:
    asker = connect(harness.directory / "agent.sock")

    asker.send({"kind": "status"})
    status = asker.receive()

    assert status is not None
    assert (status["launch"], status["workers"], status["progress"]) == (None, [], None)
    asker.close()


def test_sign_of_life_tells_the_progress_in_short(harness: AgentHarness) -> None:
    harness.launch([3], "leave_when_asked")
    harness.guard(0)
    harness.wait_for_report(3, "joined")

    harness.send("ping", draws=True)

    assert harness.wait_for("pong", workers=1, phase="training")["progress"] is None
    harness.send("request", what="stop")
    harness.wait_for("worker_exited")
