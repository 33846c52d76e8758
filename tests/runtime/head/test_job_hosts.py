"""Hosts that were lost and are tried again, by remote shells that are small programs here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from heads import job_of
from probed import facts, on_lan

from holdfast.recovery.event import HostBack, HostLost
from holdfast.recovery.placement import FIRST_TRY_AFTER_S, HostSlots
from holdfast.recovery.world import WorkerId
from holdfast.runtime.head import job_hosts as module
from holdfast.runtime.head.job_hosts import JobHosts
from holdfast.runtime.host.host_messages import MakeWorkers, News
from holdfast.runtime.host.output import OutputForwarder
from holdfast.runtime.run.events import HostRefused
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.network import Interface
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.witnessed_time import witnessed_s

pytestmark = pytest.mark.process

_SHELL = """#!{python}
import json, pathlib, sys
for line in map(json.loads, sys.stdin):
    with open({answer!r} + ".heard", "a") as heard:
        print(line["kind"], file=heard)
    if line["kind"] == "Question":
        facts = json.loads(pathlib.Path({answer!r}).read_text())
        print(json.dumps(dict(kind="HostFacts", **facts)), flush=True)
    elif line["kind"] == "Ping":
        print(json.dumps(dict(kind="Pong", number=line["number"])), flush=True)
    elif line["kind"] == "EndHost":
        break
"""
"""It answers as the agent of a host does, says what stands in a file, and notes what it hears."""


class _Hosts:
    """The two hosts of a job, the links to the other one, and what is told."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, is_taken_over: bool
    ) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "witnessed_s", lambda: self.now)
        self.is_up = True
        monkeypatch.setattr(
            module, "interfaces", lambda: (Interface("ib0", "10.1.0.1", 16, self.is_up),)
        )
        shell = folder / "shell"
        self.answer = folder / "facts"
        shell.write_text(_SHELL.format(python=sys.executable, answer=str(self.answer)))
        shell.chmod(0o700)
        self.begun = tuple(facts(name, **on_lan(n)) for n, name in enumerate("ab", start=1))
        job = job_of(rsh=str(shell), run_dir=folder)
        job = replace(
            job,
            hosts=(HostSlots("a", 1), HostSlots("b", 1)),
            network="10.1.0.0/16",
            facts=tuple(map(to_plain, self.begun)),
        )
        self.told: list[News] = []
        self.links: list[Any] = []
        self.tries: list[bool] = []
        self.losses: list[HostLost | None] = []
        self._lost: list[str] = []
        self.reactor = Reactor()
        self.output = OutputForwarder(lambda *_: None, verbose=False)
        self.why_not = ""
        launch = SimpleNamespace(start_host=self._add, admit=self._admit)
        agent: Any = SimpleNamespace(
            launch=launch, reactor=self.reactor, output=self.output, tell=self.told.append
        )
        self.hosts = JobHosts(job, agent, is_taken_over=is_taken_over)

    def _add(self, start: Any, *, is_tried: bool) -> None:
        self.tries.append(is_tried)
        self.links.append(start(lambda *_: None, lambda link, why: self._lost.append(link.name)))

    def _admit(self, name: str, then: Callable[[str], None]) -> None:
        then(self.why_not)
        if self.why_not:
            self.links[-1].give_up(self.why_not)

    def lose(self) -> None:
        self.links[-1].give_up("its link is cut")
        self.serve(lambda: bool(self._lost))

    def serve(self, is_over: Any) -> None:
        """Let the loop of an agent run until something is so, and tell the head of losses."""
        while not is_over():
            self.links[-1].poll(witnessed_s())
            self.reactor.run_once(0.01)
        while self._lost:
            self.losses.append(self.hosts.lose(HostLost(self._lost.pop(), "its link is cut", ())))

    def heard(self) -> list[str]:
        """Return the kinds of messages that the other host has heard."""
        path = Path(f"{self.answer}.heard")
        return path.read_text().split() if path.exists() else []

    def try_again(self, pause_s: float) -> None:
        count = len(self.links)
        self.now += pause_s
        self.hosts.poll(self.now)
        assert len(self.links) == count + 1

    def close(self) -> None:
        for link in self.links:
            link.close(60.0)
        self.output.close(60.0)
        self.reactor.close()


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., _Hosts]]:
    begun: list[_Hosts] = []

    def begin(*, is_taken_over: bool = False) -> _Hosts:
        begun.append(_Hosts(tmp_path, monkeypatch, is_taken_over=is_taken_over))
        return begun[-1]

    yield begin
    for found in begun:
        found.close()


def test_host_that_has_changed_stays_out_is_told_once_and_comes_back_when_it_is_mended(
    begin: Callable[..., _Hosts],
) -> None:
    found = begin()
    other = {**found.begun[1].versions, "numpy": "2.1.0"}
    found.answer.write_text(json.dumps(to_plain(replace(found.begun[1], versions=other))))
    found.hosts.poll(0.0)
    found.lose()

    for pause_s in (FIRST_TRY_AFTER_S, 2 * FIRST_TRY_AFTER_S, 4 * FIRST_TRY_AFTER_S):
        found.try_again(pause_s)
        found.serve(lambda: found.links[-1].is_lost)
    missing = found.hosts.missing
    found.answer.write_text(json.dumps(to_plain(found.begun[1])))
    found.try_again(8 * FIRST_TRY_AFTER_S)
    found.serve(lambda: isinstance(found.told[-1], HostBack))

    assert missing == ["b"]
    assert found.tries == [False, True, True, True, True]
    assert list(map(type, found.told)) == [HostRefused, HostBack]
    assert (
        found.told[0]
        .describe()
        .startswith("host b stays out: numpy is 2.1.0 on b, and 2.2.0 on a: install the")
    )
    assert found.hosts.missing == []


def test_host_that_others_do_not_reach_stays_out_until_they_do(
    begin: Callable[..., _Hosts],
) -> None:
    found = begin()
    found.answer.write_text(json.dumps(to_plain(found.begun[1])))
    found.hosts.poll(0.0)
    found.lose()
    found.why_not = "b does not reach c on 10.1.0.0/16 (timed out)"

    found.try_again(FIRST_TRY_AFTER_S)
    found.serve(lambda: found.links[-1].is_lost)
    missing = found.hosts.missing
    found.why_not = ""
    found.try_again(2 * FIRST_TRY_AFTER_S)
    found.serve(lambda: isinstance(found.told[-1], HostBack))

    assert missing == ["b"]
    assert found.losses[1:] == [None]
    assert found.told[0] == HostRefused("b", "b does not reach c on 10.1.0.0/16 (timed out)")
    assert len(found.told) == 2


def test_host_of_a_head_that_takes_over_hears_of_its_workers_when_it_was_examined(
    begin: Callable[..., _Hosts],
) -> None:
    found = begin(is_taken_over=True)
    found.answer.write_text(json.dumps(to_plain(found.begun[1])))

    placed = found.hosts.place(2)
    found.links[-1].post(MakeWorkers(4, (WorkerId(1),)))
    found.links[-1].push()
    found.serve(lambda: "Ping" in found.heard())

    assert placed == ("a", "b")
    assert found.tries == [False]
    assert found.heard()[:4] == ["Question", "Greeting", "MakeWorkers", "Ping"]
    assert found.told == []


def test_changed_host_is_lost_to_a_head_that_takes_over_and_not_to_blame(
    begin: Callable[..., _Hosts],
) -> None:
    found = begin(is_taken_over=True)
    other = {**found.begun[1].versions, "numpy": "2.1.0"}
    found.answer.write_text(json.dumps(to_plain(replace(found.begun[1], versions=other))))

    found.hosts.place(2)
    found.links[-1].post(MakeWorkers(4, (WorkerId(1),)))
    found.serve(lambda: found.links[-1].is_lost)
    placed = found.hosts.place(1)
    found.try_again(FIRST_TRY_AFTER_S)
    found.serve(lambda: found.links[-1].is_lost)
    found.links[-1].close(60.0)

    assert placed == ("a",)
    assert found.losses == [HostLost("b", "its link is cut", (), 1), None]
    assert found.tries == [False, True]
    assert found.heard() == ["Question", "Question"]
    assert list(map(type, found.told)) == [HostRefused]


def test_loss_while_the_own_link_is_down_blames_that_and_no_other_host(
    begin: Callable[..., _Hosts],
) -> None:
    found = begin()
    found.hosts.poll(0.0)
    found.is_up = False
    found.lose()

    reason = "the link of a itself to 10.1.0.0/16 is down (ib0 10.1.0.1/16)"
    assert found.losses == [HostLost("b", reason, (), 1)]


def test_next_launch_waits_for_the_lease_of_a_lost_host_that_may_have_the_whole_world(
    begin: Callable[..., _Hosts],
) -> None:
    found = begin()
    assert found.hosts.why_wait(0.0) == ""

    found.hosts.lose(HostLost("b", "", (), leased_s=7.0))
    found.now = 2.0
    found.hosts.hold("another host", 1.0)

    reason = found.hosts.why_wait(found.now)
    assert reason.startswith("b may not know yet that it is lost, and its workers may live on")
    assert reason.endswith(", 5 s at most")
    assert found.hosts.why_wait(7.0) == ""
