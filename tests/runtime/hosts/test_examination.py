"""A host that comes back to a job: it must be what it was when the job began."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

import pytest
from probed import LAN, QUESTION, facts, on_lan

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.hosts.checked_hosts import CheckedHosts
from holdfast.runtime.hosts.examination import Examination
from holdfast.runtime.hosts.network import JobNetwork
from holdfast.runtime.hosts.probe import Question
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.devices import Devices

_HOSTS = (HostSlots("a", 1), HostSlots("b", 1), HostSlots("c", 1))
_AT_START = tuple(facts(host.name, **on_lan(n)) for n, host in enumerate(_HOSTS, start=1))
_BEGUN = CheckedHosts(
    _HOSTS, JobNetwork(IPv4Network(LAN), ("10.1.0.1", "10.1.0.2", "10.1.0.3")), 8, _AT_START
)


def refusal(**changes: Any) -> str:
    """Return why ``b`` may not come back with these changes."""
    examination = Examination(_BEGUN, "b", QUESTION, {})
    answer = to_plain(replace(_AT_START[1], **changes))
    assert examination.admits(answer) is (examination.refusal == "")
    return examination.refusal


def test_host_that_is_as_it_was_may_come_back() -> None:
    assert refusal() == ""
    assert refusal(identity="b after a reboot", cores=2, clock=7.0, shm_free=1) == ""
    assert refusal(**on_lan(9)) == ""
    other_texts = {"/work/train.py": "abcdefabcd", "helper.py": "1122334455"}
    assert refusal(program=other_texts) == ""  # it runs what the job began with


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"versions": {**_AT_START[1].versions, "numpy": "2.1.0"}},
            "numpy is 2.1.0 on b, and 2.2.0 on a: install the same on all hosts",
        ),
        ({"has_cwd": False}, "the working directory /work is not on b: share it"),
        ({"has_token": False}, "the run directory /work/run is not the same on b and a: choose"),
        ({"program": {}}, "the script /work/train.py is not on b: copy it there"),
        ({"distributions": {"scipy": "1.0"}}, "pandas is not installed on b, and 2.2 on a: "),
        ({"flags": frozenset({"avx"})}, "b has another processor by now, and its bits would dif"),
        (
            {"processor": "Older", "flags": frozenset({"avx"})},
            "b has another processor by now, and its bits would differ: start the job again, and "
            "all workers have ONEDNN_MAX_CPU_ISA=AVX OPENBLAS_CORETYPE=SANDYBRIDGE",
        ),
        (
            {"devices": Devices("CUDA_VISIBLE_DEVICES", ("0",), ("H100",))},
            "and b has H100: their bits differ",
        ),
        ({"identity": "c"}, "b and c are one host: name it once"),
        ({"reached": ()}, "b does not reach a at 10.1.0.1; let TCP connections pass there"),
    ],
    ids=[
        *("version", "directory", "run directory", "no script", "distribution", "flags"),
        "processor",
        *("devices", "other host", "network"),
    ],
)
def test_host_that_has_changed_is_refused_with_the_values_and_the_remedy(
    changes: dict[str, Any], words: str
) -> None:
    assert words in refusal(**changes)


def test_processor_that_can_do_what_the_job_is_held_to_may_come_back() -> None:
    held = {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "OPENBLAS_CORETYPE": "HASWELL",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
    }
    answer = to_plain(replace(_AT_START[1], processor="Newer"))

    assert Examination(_BEGUN, "b", QUESTION, held).admits(answer)


def test_answer_of_another_holdfast_is_refused() -> None:
    examination = Examination(_BEGUN, "b", QUESTION, {})

    assert not examination.admits({"cores": 2})
    assert examination.refusal.startswith("the holdfast of b gives another answer (HostFacts")


def test_head_listens_on_the_network_of_the_job_until_the_answer_has_come() -> None:
    network = JobNetwork(IPv4Network("127.0.0.0/8"), ("127.0.0.1", "127.0.0.2", "127.0.0.3"))
    examination = Examination(replace(_BEGUN, network=network), "b", QUESTION, os.environ)
    question: Question = examination.question
    (meeting,) = question.meetings

    with socket.create_connection((meeting.address, meeting.port)) as caller:
        assert caller.recv(len(question.word)).decode() == question.word
    examination.admits({})

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((meeting.address, meeting.port))
