"""How fast hosts speak to each other, and what is told when they do not."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest

from holdfast.runtime.hosts.link_trial import LinkQuestion, LinkSpeed, measure, measure_pairs
from holdfast.runtime.hosts.remote_shell import RemoteShell
from holdfast.runtime.system.network import MeetingPlace

LOOPBACK, WORD = "127.0.0.0/8", "0123abcd"


def test_way_to_a_meeting_has_a_latency_and_a_bandwidth() -> None:
    with MeetingPlace([(IPv4Network(LOOPBACK), "127.0.0.1")], WORD) as place:
        speed = measure(place.meetings[0], "127.0.0.2", WORD)

    assert speed.fault == ""
    assert speed.latency_s > 0
    assert speed.bytes_per_s > 0


def test_speed_is_told_in_milliseconds_and_megabytes() -> None:
    assert str(LinkSpeed(0.000123, 1.25e9)) == "0.12 ms there and back, 1250 MB/s"
    assert str(LinkSpeed(fault="b cannot listen")) == "b cannot listen"


def test_meeting_where_nobody_is_has_a_fault() -> None:
    with MeetingPlace([(IPv4Network(LOOPBACK), "127.0.0.1")], WORD) as place:
        (meeting,) = place.meetings

    assert measure(meeting, "", WORD).fault == "no connection: Connection refused"


@pytest.fixture
def shell(tmp_path: Path) -> RemoteShell:
    """A shell whose hosts are all this one, but host ``dead`` does not answer; it greets."""
    program = tmp_path / "my-shell"
    program.write_text('#!/bin/sh\n[ "$1" = dead ] && exit 1\nshift\necho hello\nexec "$@"\n')
    program.chmod(0o700)
    return RemoteShell((str(program),))


def question(number: int) -> LinkQuestion:
    return LinkQuestion(LOOPBACK, f"127.0.0.{number}", WORD)


@pytest.mark.process
def test_each_pair_of_hosts_is_measured_once(shell: RemoteShell) -> None:
    questions = [question(number) for number in (1, 2, 3)]

    found = list(measure_pairs([(0, 1), (0, 2), (1, 2)], ["a", "b", "c"], questions, shell))

    assert [(first, second) for first, second, _ in found] == [(0, 1), (0, 2), (1, 2)]
    assert [speed.fault for *_, speed in found] == ["", "", ""]


@pytest.mark.process
def test_host_that_takes_no_part_is_named_and_the_others_are_measured(shell: RemoteShell) -> None:
    names = ["a", "dead", "c"]
    questions = [question(number) for number in (1, 2, 3)]

    found = list(measure_pairs([(0, 1), (0, 2), (1, 2)], names, questions, shell))

    faults = {(first, second): speed.fault for first, second, speed in found}
    assert faults == {
        (0, 1): "dead has not measured it",
        (0, 2): "",
        (1, 2): "dead cannot listen",
    }
