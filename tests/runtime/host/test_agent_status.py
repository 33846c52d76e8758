"""What an agent is asked by anyone of the same user, and what its supervisor orders."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from agent_harness import AgentHarness
from configs import worker_config

from holdfast.runtime.host.hosted_worker import HostedLaunch
from holdfast.runtime.host.mpi_host import MpiOrder
from holdfast.runtime.host.orders import Orders
from holdfast.runtime.host.supervisor_link import SupervisorLink
from holdfast.runtime.run import lease as lease_module
from holdfast.runtime.run.lease import Lease, owner_in
from holdfast.runtime.run.progress import WorkerReport
from holdfast.runtime.system.channel import FDS, Message, connect, pair
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.worker_status import RequestFlag


@pytest.mark.process
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


@pytest.mark.process
def test_agent_without_a_launch_has_no_workers_to_tell(harness: AgentHarness) -> None:
    asker = connect(harness.directory / "agent.sock")

    asker.send({"kind": "status"})
    status = asker.receive()

    assert status is not None
    assert (status["launch"], status["workers"], status["progress"]) == (None, [], None)
    asker.close()


@pytest.mark.process
def test_sign_of_life_tells_the_progress_in_short(harness: AgentHarness) -> None:
    harness.launch([3], "leave_when_asked")
    harness.guard(0)
    harness.wait_for_report(3, "joined")

    harness.send("ping", draws=True)

    assert harness.wait_for("pong", workers=1, phase="training")["progress"] is None
    harness.send("request", what="stop")
    harness.wait_for("worker_exited")


CONFIG = worker_config(7, (7, 8), generation=3)
MPI = {"mpiexec": "/opt/mpiexec", "library": "Open MPI", "ulfm": True}
LAUNCH = {"kind": "launch", "config": to_plain(CONFIG), "mpi": MPI, "relaunch": 0, "spent": 0}


class Agent:
    """Orders, and what they come to; an error is raised where a test wants one."""

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []
        self.errors: dict[str, OSError] = {}
        self.link = SupervisorLink()
        ours, self._supervisor = pair()
        self.link.attach(ours, {"kind": "agent_ready"})
        self._supervisor.drain()
        parts = {part: SimpleNamespace(**self._calls(part)) for part in ("host", "mpi", "watch")}
        parts["host"].progress = {"workers": 2}
        self.orders = Orders(**parts, supervisor=self.link, socket=Path("/a.sock"))  # type: ignore[arg-type]

    def _calls(self, part: str) -> dict[str, Callable[..., None]]:
        names = ("begin", "kill", "kill_all", "ask_all", "stop_all", "share_terminal")
        return {name: partial(self._call, f"{part} {name}") for name in names}

    def _call(self, name: str, *words: object, **more: object) -> None:
        self.done.append((name, *words, *more.values()))
        if name in self.errors:
            raise self.errors[name]

    def told(self) -> list[Message]:
        messages = self._supervisor.drain()
        return [{name: v for name, v in message.items() if name != "now"} for message in messages]

    def close(self) -> None:
        self.link.detach()
        self._supervisor.close()


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.close()


def test_launch_is_remembered_before_its_workers_are_made_and_mpiexec_is_started(
    agent: Agent,
) -> None:
    agent.orders.obey(LAUNCH)

    order = MpiOrder(Path("/opt/mpiexec"), ulfm=True)
    assert agent.done == [
        ("watch begin", 2),
        ("host begin", HostedLaunch(CONFIG, {})),
        ("mpi begin", 3, order, 2, Path("/a.sock")),
    ]
    assert agent.link.log.launch == LAUNCH
    assert agent.told() == []


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"config": None}, "WrongValue: WorkerConfig is None, not an object"),
        ({"config": to_plain(CONFIG) | {"generation": -1}}, "ValueError: generation is -1"),
        (
            {"config": to_plain(CONFIG) | {"options": {"workers": 0}}},
            "WrongValue: WorkerConfig.options.",
        ),
        ({"mpi": {"mpiexec": "/m", "ulfm": True}}, "KeyError: 'library'"),
    ],
    ids=["no config", "no generation", "no options", "no library"],
)
def test_launch_that_makes_no_sense_is_refused_and_nothing_begins(
    agent: Agent, message: Message, why: str
) -> None:
    agent.orders.obey(LAUNCH | message)

    (refused,) = agent.told()
    assert refused["kind"] == "refused"
    assert refused["message"].startswith(f"a launch message is incomplete: {why}")
    assert (agent.done, agent.link.log.launch) == ([], None)


@pytest.mark.parametrize(
    ("part", "words", "undone"),
    [
        ("host begin", "2 workers cannot be made: no more", [("host kill_all",)]),
        ("mpi begin", "/opt/mpiexec cannot be started: no more", []),
    ],
)
def test_launch_that_the_system_refuses_has_ended(
    agent: Agent, part: str, words: str, undone: list[tuple[str]]
) -> None:
    agent.errors[part] = OSError("no more")

    agent.orders.obey(LAUNCH)

    assert agent.told() == [{"kind": "launch_ended", "generation": 3, "words": words}]
    begun = [name for name, *_ in agent.done]
    assert begun[begun.index(part) + 1 :] == [name for (name,) in undone]


@pytest.mark.parametrize(
    ("order", "done"),
    [
        (
            {"kind": "kill", "is_urgent": True},
            [("host kill_all", "killed by the supervisor", True), ("mpi kill",)],
        ),
        (
            {"kind": "kill"},
            [("host kill_all", "killed by the supervisor", False), ("mpi kill",)],
        ),
        ({"kind": "request", "what": "save"}, [("host ask_all", RequestFlag.SAVE)]),
        ({"kind": "request", "what": "stop"}, [("host stop_all",)]),
        ({"kind": "request", "what": "renew"}, []),
    ],
    ids=["kill now", "kill", "save", "stop", "renew without a launch"],
)
def test_order_reaches_all_workers(agent: Agent, order: Message, done: list[object]) -> None:
    agent.orders.obey(order)

    assert agent.done == done
    assert agent.told() == []


def test_launch_that_makes_room_is_told_so_that_any_supervisor_launches_again(
    agent: Agent,
) -> None:
    agent.orders.obey(LAUNCH)

    agent.orders.obey({"kind": "request", "what": "renew"})

    assert agent.done[-1] == ("host ask_all", RequestFlag.STOP)
    assert agent.told() == [{"kind": "renewing", "worker": 7}]
    assert [event["kind"] for event in agent.link.log.events] == ["renewing"]


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"kind": "dance"}, "there is no order 'dance'"),
        ({}, "there is no order None"),
        (
            {"kind": "request", "what": "more"},
            "a worker can be asked to save or to stop, not 'more'",
        ),
    ],
)
def test_unknown_order_is_refused(agent: Agent, order: Message, why: str) -> None:
    agent.orders.obey(order)

    assert agent.told() == [{"kind": "refused", "message": why}]


@pytest.mark.parametrize("draws", [True, False])
def test_sign_of_life_tells_the_progress_and_shares_the_terminal(
    agent: Agent, *, draws: bool
) -> None:
    agent.orders.obey({"kind": "ping", "draws": draws})

    assert agent.told() == [{"kind": "pong", "workers": 2}]
    assert agent.done == [("host share_terminal", draws)]


def test_lease_of_a_directory_that_was_made_again_takes_the_place_of_the_old_one(
    agent: Agent, tmp_path: Path
) -> None:
    old, new = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("old", "new"))
    agent.orders.hold_lease(old)

    agent.orders.obey({"kind": "lease"})
    held = agent.orders.lease
    assert held is not None
    assert held.fileno() == old  # none came with it
    agent.orders.obey({"kind": "lease", FDS: [new]})

    assert agent.orders.lease.fileno() == new
    assert held.fileno() < 0, "it is closed"
    agent.orders.lease.release()


def test_agent_renews_a_lease_that_has_no_lock(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the directory stays the job's when the supervisor is gone."""
    path, renewed, write = tmp_path / "lease", threading.Semaphore(0), os.pwrite

    def note(descriptor: int, content: bytes, offset: int) -> int:
        count = write(descriptor, content, offset)
        renewed.release()
        return count

    Lease(os.open(path, os.O_RDWR | os.O_CREAT)).begin("mine", takes_orders=True, is_renewed=True)
    before = path.read_bytes()
    monkeypatch.setattr(lease_module, "RENEWED_EVERY_S", 0.001)
    monkeypatch.setattr(os, "pwrite", note)

    agent.orders.hold_lease(os.open(path, os.O_RDWR))

    for _ in range(3):
        assert renewed.acquire(timeout=10.0)
    assert agent.orders.lease is not None
    agent.orders.lease.release()
    assert path.read_bytes() != before
    assert owner_in(path.read_bytes())["token"] == "mine"
