"""What the head orders its agent to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from configs import worker_config

from holdfast.recovery.event import (
    AbandonLaunch,
    AskToSave,
    AskToStop,
    Event,
    KillLaunch,
    LaunchEnded,
    Renew,
)
from holdfast.runtime.host.agent import Orders
from holdfast.runtime.host.host_messages import LaunchOrder, MpiOrder, Order
from holdfast.runtime.system.worker_status import RequestFlag

CONFIG = worker_config(7, (7, 8), generation=3)
MPI = MpiOrder(Path("/opt/mpiexec"), "Open MPI", ulfm=True)
LAUNCH = LaunchOrder(CONFIG, MPI)


class Agent:
    """Orders, and what they come to; an error is raised where a test wants one."""

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []
        self.errors: dict[str, OSError] = {}
        self.told: list[Event] = []
        parts = {part: SimpleNamespace(**self._calls(part)) for part in ("workers", "mpi", "watch")}
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

    assert agent.done == [
        ("watch begin", 2),
        ("workers begin", CONFIG),
        ("mpi begin", 3, MPI, 2, Path("/a.sock")),
    ]
    assert agent.told == []


@pytest.mark.parametrize(
    ("part", "words", "undone"),
    [
        ("workers begin", "2 workers cannot be made: no more", [("workers kill_all",)]),
        ("mpi begin", "/opt/mpiexec cannot be started: no more", []),
    ],
)
def test_launch_that_the_system_refuses_has_ended(
    agent: Agent, part: str, words: str, undone: list[tuple[str]]
) -> None:
    agent.errors[part] = OSError("no more")

    agent.orders.obey(LAUNCH)

    assert agent.told == [LaunchEnded(f"mpiexec started no worker: {words}")]
    begun = [name for name, *_ in agent.done]
    assert begun[begun.index(part) + 1 :] == [name for (name,) in undone]


KILLED = "killed with its launch"


@pytest.mark.parametrize(
    ("order", "done"),
    [
        (KillLaunch("late", is_urgent=True), [("workers kill_all", KILLED, True), ("mpi kill",)]),
        (KillLaunch("late"), [("workers kill_all", KILLED, False), ("mpi kill",)]),
        (AskToSave(), [("workers ask_all", RequestFlag.SAVE)]),
        (AskToStop(), [("workers stop_all",)]),
        (Renew("2 are left"), [("workers ask_all", RequestFlag.STOP)]),
    ],
)
def test_order_reaches_all_workers(agent: Agent, order: Order, done: list[object]) -> None:
    agent.orders.obey(order)

    assert agent.done == done
    assert agent.told == []


@pytest.mark.parametrize("is_launched", [True, False])
def test_launch_that_does_not_even_end_when_it_is_killed_is_given_up(
    agent: Agent, *, is_launched: bool
) -> None:
    if is_launched:
        agent.orders.obey(LAUNCH)
        agent.done.clear()

    agent.orders.obey(AbandonLaunch("it hangs"))

    assert agent.done == [("workers abandon", "it hangs"), ("mpi abandon",)]
    assert agent.told == [LaunchEnded()] * is_launched
