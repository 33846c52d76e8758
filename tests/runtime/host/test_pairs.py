"""Trials of all pairs of hosts: each is tried once, and nobody is waited for in vain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.runtime.host import pairs as module
from holdfast.runtime.host.host_messages import Meet, Met
from holdfast.runtime.host.pairs import Broken, PairTrials
from holdfast.runtime.system.network import Meeting

NETWORK = "10.1.0.0/16"


class Host:
    """A host that answers at once, unless it is silent."""

    def __init__(self, name: str, net: Net) -> None:
        self.name = "" if name == "a" else name
        self.letter = name
        self._net = net

    def post(self, order: Meet, fds: Sequence[int] = ()) -> None:
        net = self._net
        if self.letter in net.silent:
            return
        net.heard.append((self.letter, order))
        if order.meetings:
            others = [meeting.address for meeting in order.meetings]
            net.tried += [frozenset((self.letter, other)) for other in others]
            faults = tuple("timed out" * (frozenset((self.letter, o)) in net.cut) for o in others)
            net.answers.append((self, Met(order.trial, faults=faults)))
        else:
            here = () if self.letter in net.down else (Meeting(NETWORK, self.letter, 1),)
            net.answers.append((self, Met(order.trial, here)))


class Net:
    """Hosts a to e, the first of which is the head's, and what has become of their network."""

    def __init__(self, cut: str = "", down: str = "", silent: str = "") -> None:
        self.cut = {frozenset(pair) for pair in cut.split()}
        self.down, self.silent = down, silent
        self.heard: list[tuple[str, Meet]] = []
        self.answers: list[tuple[Any, Met]] = []
        self.tried: list[frozenset[str]] = []
        self.found: list[Broken] = []
        self.hosts: list[Any] = [Host(name, self) for name in "abcde"]
        self.trials = PairTrials(NETWORK, "a")

    def begin(self) -> None:
        self.trials.begin(self.hosts, self.found.append)
        self.serve()

    def serve(self) -> None:
        while self.answers:
            self.trials.hear(*self.answers.pop(0))


@pytest.mark.parametrize(
    ("net", "broken", "tried", "why"),
    [
        (Net(cut="bd ce"), "bd ce", 10, "c does not reach e on 10.1.0.0/16 (timed out)"),
        (
            *(Net(down="c"), "ca cb cd ce", 6),
            "c does not reach a, b, d, e on 10.1.0.0/16 (no interface is up there)",
        ),
    ],
    ids=["cut", "no interface"],
)
def test_each_pair_of_hosts_with_an_interface_is_tried_once_and_those_that_are_cut_are_found(
    net: Net, broken: str, tried: int, why: str
) -> None:
    net.begin()

    (found,) = net.found
    assert found.keys() == {frozenset(pair) for pair in broken.split()}
    assert len(net.tried) == len(set(net.tried)) == tried
    assert net.trials.why("c", found) == why


def test_host_that_is_lost_meanwhile_is_waited_for_no_more() -> None:
    net = Net(silent="c", cut="be")
    net.begin()
    assert net.found == []

    net.trials.lose(net.hosts[2])
    net.serve()

    assert net.found == [{frozenset("be"): "timed out"}]


def test_silent_host_is_waited_for_as_long_as_a_trial_takes_and_then_the_next_one_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_TAKES_S", 0.0)
    net = Net(silent="c")
    net.begin()
    net.begin()
    assert net.found == []

    net.silent = ""
    net.trials.poll()
    net.serve()

    assert net.found == [{}, {}]
    assert len(net.tried) == 10
