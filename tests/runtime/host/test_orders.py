"""What the head orders its agent to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from configs import worker_config

from holdfast.runtime.errors import JobError
from holdfast.runtime.host.agent import Orders
from holdfast.runtime.host.mpi_host import MpiOrder
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.worker_status import RequestFlag

CONFIG = worker_config(7, (7, 8), generation=3)
MPI = {"mpiexec": "/opt/mpiexec", "library": "Open MPI", "ulfm": True}
LAUNCH = {"kind": "launch", "config": to_plain(CONFIG), "mpi": MPI, "relaunch": 0, "spent": 0}


class Agent:
    """Orders, and what they come to; an error is raised where a test wants one."""

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []
        self.errors: dict[str, OSError] = {}
        self.told: list[Message] = []
        parts = {part: SimpleNamespace(**self._calls(part)) for part in ("host", "mpi", "watch")}
        parts["host"].launch = parts["host"]
        self.orders = Orders(**parts, tell=self.told.append, socket=Path("/a.sock"))  # type: ignore[arg-type]

    def _calls(self, part: str) -> dict[str, Callable[..., None]]:
        names = ("begin", "kill", "kill_all", "ask_all", "stop_all", "abandon")
        return {name: partial(self._call, f"{part} {name}") for name in names}

    def _call(self, name: str, *words: object, **more: object) -> None:
        self.done.append((name, *words, *more.values()))
        if name in self.errors:
            raise self.errors[name]


@pytest.fixture
def agent() -> Agent:
    return Agent()


def test_workers_of_a_launch_are_announced_before_mpiexec_is_started(agent: Agent) -> None:
    agent.orders.obey(LAUNCH)

    order = MpiOrder(Path("/opt/mpiexec"), ulfm=True)
    assert agent.done == [
        ("watch begin", 2),
        ("host begin", CONFIG),
        ("mpi begin", 3, order, 2, Path("/a.sock")),
    ]
    assert agent.told == []


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"config": None}, "WorkerConfig is None, not an object"),
        ({"config": to_plain(CONFIG) | {"generation": -1}}, "generation is -1"),
        ({"config": to_plain(CONFIG) | {"options": {"workers": 0}}}, "WorkerConfig.options."),
        ({"mpi": {"mpiexec": "/m", "ulfm": True}}, "library"),
    ],
    ids=["no config", "no generation", "no options", "no library"],
)
def test_launch_that_makes_no_sense_is_refused_and_nothing_begins(
    agent: Agent, message: Message, why: str
) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, JobError), match=why):
        agent.orders.obey(LAUNCH | message)

    assert agent.done == []


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

    assert agent.told == [{"kind": "launch_ended", "generation": 3, "words": words}]
    begun = [name for name, *_ in agent.done]
    assert begun[begun.index(part) + 1 :] == [name for (name,) in undone]


@pytest.mark.parametrize(
    ("order", "done"),
    [
        (
            {"kind": "kill", "is_urgent": True},
            [("host kill_all", "killed with its launch", True), ("mpi kill",)],
        ),
        (
            {"kind": "kill"},
            [("host kill_all", "killed with its launch", False), ("mpi kill",)],
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
    assert agent.told == []


def test_launch_that_makes_room_is_told_so_that_another_one_follows(agent: Agent) -> None:
    agent.orders.obey(LAUNCH)

    agent.orders.obey({"kind": "request", "what": "renew"})

    assert agent.done[-1] == ("host ask_all", RequestFlag.STOP)
    assert agent.told == [{"kind": "renewing", "worker": 7}]


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ({"kind": "dance"}, "there is no order 'dance'"),
        (
            {"kind": "request", "what": "more"},
            "a worker can be asked to save or to stop, not 'more'",
        ),
    ],
)
def test_unknown_order_is_refused(agent: Agent, order: Message, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        agent.orders.obey(order)


@pytest.mark.parametrize("is_launched", [True, False])
def test_launch_that_does_not_even_end_when_it_is_killed_is_given_up(
    agent: Agent, *, is_launched: bool
) -> None:
    if is_launched:
        agent.orders.obey(LAUNCH)
        agent.done.clear()

    agent.orders.obey({"kind": "abandon", "reason": "it hangs"})

    assert agent.done == [("host abandon", "it hangs"), ("mpi abandon",)]
    ended = {"kind": "launch_ended", "generation": 3, "words": ""}
    assert agent.told == [ended] * is_launched
