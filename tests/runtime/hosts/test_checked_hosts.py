"""Hosts before a job begins: what is refused, in which words, and what is settled for all."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from probed import QUESTION, asked, facts, on_lan

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.errors import UsageError
from holdfast.runtime.hosts.checked_hosts import (
    Asked,
    ask_all,
    common_numerics,
    differences,
    may_differ,
    refuse,
    threads_of_all,
    unlike_devices,
    why_not_again,
)
from holdfast.runtime.hosts.remote_host import RemoteShell
from holdfast.runtime.system.channel import to_message
from holdfast.runtime.system.devices import Devices
from holdfast.runtime.system.own_process import answer_of, program_command

UNOWNED = replace(QUESTION, proof=Path("/proc/self/comm"), token="")
"""No host waits for a file that is not there."""
KERNELS = """
import json
import numpy
from threadpoolctl import threadpool_info
print(*{found["architecture"] for found in threadpool_info() if found["user_api"] == "blas"})
"""
_TAKEN = "and holdfast would take it for a message"
SAME = "install the same on all hosts, or share one installation"


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        (
            {"versions": {"Python": "3.11.2", "numpy": "2.1.0", "MPI": "Open MPI 5.0.9"}},
            f"numpy is 2.1.0 on b, c, and 2.2.0 on a: {SAME}",
        ),
        (
            {"versions": {"Python": "3.11.2", "numpy": "2.2.0", "MPI": ""}},
            f"MPI is not installed on b, c, and Open MPI 5.0.9 on a: {SAME}",
        ),
        ({"has_cwd": False}, "the working directory /work is not on b, c: share it"),
        (
            {"program": {"helper.py": "aabbccddee"}},
            "the script /work/train.py is not on b, c: copy it there, or share its folder",
        ),
        (
            {"program": {"/work/train.py": "abcdefabcd", "helper.py": "aabbccddee"}},
            "the script /work/train.py on b, c is another one than on a (SHA-256 abcdefab, not "
            "12345678): copy it there, or share its folder",
        ),
        (
            {"program": {"/work/train.py": "1234567890", "helper.py": "1122334455"}},
            "the module helper.py on b, c is another one than on a (SHA-256 11223344, not "
            "aabbccdd): copy it there, or share its folder",
        ),
        (
            {"program": {"/work/train.py": "1234567890"}},
            "the module helper.py is not on b, c: copy it there, or share its folder",
        ),
        (
            {"has_token": False},
            "the run directory /work/run is not the same on b, c and a: choose one on a file "
            "system that all hosts share, by --run-dir",
        ),
    ],
    ids=[
        *("version", "not installed", "directory", "no script", "other script"),
        *("other module", "no module", "run directory"),
    ],
)
def test_what_must_be_the_same_is_refused_with_both_values_and_the_remedy(
    others: dict[str, Any], sentence: str
) -> None:
    hosts = [asked("a"), asked("b", **others), asked("c", **others)]

    assert list(differences(hosts, QUESTION)) == [sentence]


def test_two_names_of_one_host_are_refused_and_hosts_of_other_sizes_are_not() -> None:
    other = facts("b", cores=2, clock=99.5, flags=frozenset({"avx"}), memory=1)
    hosts = [asked("a"), Asked("b", other), asked("b-ib", identity="b")]

    assert list(differences(hosts, QUESTION)) == [
        "b and b-ib are one host: name it once, with all slots"
    ]


@pytest.mark.parametrize(
    ("kinds", "slots", "refused"),
    [
        (("H100", "H100"), (1, 1), False),
        (("", "H100"), (0, 1), False),
        (("", "H100"), (1, 1), True),
        (("A100", "H100"), (1, 1), True),
    ],
    ids=["alike", "head without workers", "processors and devices", "other model"],
)
def test_hosts_with_devices_of_other_kinds_are_refused(
    kinds: tuple[str, str], slots: tuple[int, int], *, refused: bool
) -> None:
    devices = [
        Devices("CUDA_VISIBLE_DEVICES", ("0",), (kind,)) if kind else Devices() for kind in kinds
    ]
    hosts = [HostSlots(name, count) for name, count in zip("ab", slots, strict=True)]

    found = list(
        unlike_devices(hosts, [asked(n, devices=d) for n, d in zip("ab", devices, strict=True)])
    )

    first = kinds[0] or "no devices"
    assert found == refused * [
        f"a has {first}, and b has H100: their bits differ; take hosts with devices of one kind, "
        "or hide them all by CUDA_VISIBLE_DEVICES= on each host"
    ]


def test_many_faults_are_told_by_the_first_of_them() -> None:
    with pytest.raises(UsageError) as caught:
        refuse([f"fault {number}" for number in range(6)])

    assert str(caught.value) == (
        "fault 0. fault 1. fault 2. fault 3. and 2 more: `holdfast doctor --hosts` lists them all"
    )
    refuse([])


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str, str], RemoteShell]:
    def made(name: str, text: str) -> RemoteShell:
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o700)
        return RemoteShell((str(program), *(("-p", "2222") if name == "ssh" else ())))

    return made


def test_shell_that_is_not_there_is_named() -> None:
    _, other = ask_all(["a", "b"], RemoteShell(("/nowhere/ssh",)), UNOWNED, print)

    assert other.fault == (
        "--rsh ssh cannot be started: No such file or directory; name a remote shell"
    )


@pytest.mark.process
def test_shell_that_goes_nowhere_shows_one_host_twice(
    shell: Callable[[str, str], RemoteShell],
) -> None:
    own, other = ask_all(["a", "b"], shell("my-shell", 'shift; exec "$@"'), UNOWNED, print)

    assert other.fault == ""
    assert own.facts is not None
    assert other.facts is not None
    assert other.facts.versions == own.facts.versions
    assert next(iter(differences([own, other], QUESTION))).startswith("a and b are one host")
    assert own.clock_ahead_s == other.clock_ahead_s == 0.0


@pytest.mark.process
def test_hosts_that_take_long_are_named_meanwhile(
    shell: Callable[[str, str], RemoteShell], tmp_path: Path
) -> None:
    """The shell of the slow host waits until it was told of."""
    told: list[str] = []
    os.mkfifo(tmp_path / "told")

    def tell(words: str) -> None:
        told.append(words)
        (tmp_path / "told").write_text("go")

    slow = shell("my-shell", f"[ $1 = b ] && cat {tmp_path}/told >/dev/null; exit 3")

    asked_hosts = ask_all(["a", "b", "c"], slow, UNOWNED, tell, told_after_s=0.5)

    (words,) = told
    assert words.startswith("waiting for b")
    assert words.endswith("to answer, 60 s at most")
    assert all("exit code 3" in one.fault for one in asked_hosts[1:])


_PRINT = "let .bashrc and the like print nothing without a terminal"


@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            'echo hello; exec "$@"',
            f"b prints 'hello' when a shell starts there, {_TAKEN}: {_PRINT}",
        ),
        (
            "echo 'sh: python: not found' >&2; exit 127",
            f"b has no holdfast at {sys.executable}: sh: python: not found; install it there as it "
            "is here, or share one file system",
        ),
        (
            'shift; exec "$0.python" /nowhere/start.py "$@"',
            "can't open file '/nowhere/start.py': [Errno 2] No such file or directory; install it",
        ),
        ("exit 3", "b has not answered: exit code 3; `my-shell` must run a command"),
        (
            'echo \'{"kind": "HostFacts", "cores": 2}\'',
            "the holdfast of b gives another answer (HostFacts",
        ),
        (
            'printf "\\033]0;root@b\\007"; exec "$@"',
            rf"b prints '\x1b]0;root@b\x07' when a shell starts there, {_TAKEN}: {_PRINT}",
        ),
        (
            "exit 0",
            "b has said nothing: `my-shell` must run a command there and pass on what that prints, "
            "and no .bashrc may end the shell",
        ),
        (
            'echo "would run $@"; exit 0',
            "b has said 'would run ",
        ),
        (
            'exec "$@" </dev/null',
            "`my-shell` does not pass stdin on to b: leave -n out (kubectl exec needs -i), and let "
            "no .bashrc read it",
        ),
        ('exec "$@" <&-', "`my-shell` does not pass stdin on to b: "),
        ('echo yes | "$@"', "`my-shell` does not pass stdin on to b: "),
        ('read line; exec "$@"', "`my-shell` does not pass stdin on to b: "),
        (
            'exec script -qec "$*" /dev/null',
            "`my-shell` gives b a terminal, which changes what passes: leave -t and the like out; "
            "ssh has -T",
        ),
        (
            '"$@" | sed "s/^/b: /"',
            f"b prints 'b:' before each line of `my-shell`, {_TAKEN}: let it label none (pdsh -N, "
            "clush -N, srun without -l)",
        ),
        (
            '"$@"; echo "Connection to b closed."',
            f"b prints 'Connection to b closed.' after the answer, {_TAKEN}: let `my-shell` say "
            "nothing of its own",
        ),
        (
            "echo 'Access denied: you have no job here' >&2; echo 'Connection closed.' >&2; exit 1",
            "b has not answered: Access denied: you have no job here; Connection closed; "
            "`my-shell` must run a command there",
        ),
        (
            'shift; shift; exec "$0.python" -c "raise OSError(\'no more\')"',
            f"holdfast fails on b (OSError: no more): {SAME}",
        ),
    ],
    ids=[
        "line", "no interpreter", "no holdfast", "another failure", "another version",
        "no newline", "ends", "echoes", "no stdin", "closed stdin", "other stdin", "reads stdin",
        "terminal", "label", "trailer", "two lines", "exception",
    ],
)  # fmt: skip
def test_answer_that_is_none_is_told_with_its_cause(
    shell: Callable[[str, str], RemoteShell], tmp_path: Path, text: str, fault: str
) -> None:
    python = shutil.which("python3")
    assert python is not None
    (tmp_path / "my-shell.python").symlink_to(python)

    _, other = ask_all(["a", "b"], shell("my-shell", f"shift; {text}"), UNOWNED, print)

    assert fault in other.fault
    assert other.facts is None


@pytest.mark.process
def test_host_that_ssh_does_not_reach_is_told_in_its_words(
    shell: Callable[[str, str], RemoteShell],
) -> None:
    text = "echo 'banner' >&2; echo 'root@b: Permission denied (publickey).' >&2; exit 255"

    _, other = ask_all(["a", "b"], shell("ssh", text), UNOWNED, print)

    said = "b cannot be reached by ssh: banner; root@b: Permission denied (publickey); nobody is"
    assert other.fault.startswith(said)
    assert other.fault.endswith("/ssh -p 2222 -o BatchMode=yes b true` must work")


@pytest.mark.parametrize(
    ("clock", "ahead_s"), [(100.0, 0.0), (161.0, 60.0), (39.0, -60.0)], ids=["same", "fast", "slow"]
)
def test_clock_is_compared_with_the_time_of_the_question(clock: float, ahead_s: float) -> None:
    assert asked("b", clock=clock).clock_ahead_s == ahead_s


@pytest.mark.parametrize(
    ("workers", "slots", "cores", "threads"),
    [
        (4, (2, 2), (8, 8), 4),
        (4, (2, 2), (8, 4), 2),
        (4, (0, 4), (2, 16), 4),
        (2, (2, 2), (8, 2), 4),
        (4, (2, 2), (1, 1), 1),
    ],
    ids=["alike", "smaller host", "head alone", "unused host", "more workers than cores"],
)
def test_threads_are_those_that_workers_can_have_on_every_host(
    workers: int, slots: tuple[int, ...], cores: tuple[int, ...], threads: int
) -> None:
    hosts = [HostSlots(name, count) for name, count in zip("ab", slots, strict=True)]
    found = [facts(name, cores=count) for name, count in zip("ab", cores, strict=True)]

    assert threads_of_all(workers, hosts, found) == threads


AVX_ALONE = "ONEDNN_MAX_CPU_ISA=AVX OPENBLAS_CORETYPE=SANDYBRIDGE XLA_FLAGS=--xla_cpu_max_isa=AVX"


@pytest.mark.parametrize(
    ("processors", "flags", "environment", "found"),
    [
        ("A A", ("avx avx2", "avx avx2"), {}, ""),
        ("A B", ("avx avx2", "avx"), {}, AVX_ALONE),
        (
            *("A B", ("avx avx2 avx_vnni", "avx avx2"), {}),
            "ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=HASWELL XLA_FLAGS=--xla_cpu_max_isa=AVX2",
        ),
        (
            "A B",
            ("avx avx2", "avx avx2"),
            {},
            "OPENBLAS_CORETYPE=HASWELL XLA_FLAGS=--xla_cpu_max_isa=AVX2",
        ),
        (
            *("A B", ("avx avx2", "avx"), {"ONEDNN_MAX_CPU_ISA": "AVX"}),
            "OPENBLAS_CORETYPE=SANDYBRIDGE XLA_FLAGS=--xla_cpu_max_isa=AVX",
        ),
        (
            *("A B", ("avx avx2", "avx"), {"OPENBLAS_CORETYPE": "Nehalem"}),
            "ONEDNN_MAX_CPU_ISA=AVX XLA_FLAGS=--xla_cpu_max_isa=AVX",
        ),
        ("A A", ("avx avx2", "avx"), {}, AVX_ALONE),
        ("A B", ("asimd", "asimd"), {}, ""),
        (
            *("A B", ("avx avx2", "avx"), {"XLA_FLAGS": "--xla_a"}),
            f"{AVX_ALONE.replace('=--', '=--xla_a --')}",
        ),
        (
            *("A B", ("avx avx2", "avx avx2"), {"XLA_FLAGS": "--xla_cpu_max_isa=AVX"}),
            "OPENBLAS_CORETYPE=HASWELL",
        ),
    ],
    ids=[
        *("alike", "older", "neither has all", "one set", "pinned", "pinned kernels"),
        *("one name in a cloud", "not x86", "other flags", "pinned compiler"),
    ],
)
def test_libraries_do_what_all_processors_can(
    processors: str, flags: tuple[str, ...], environment: dict[str, str], found: str
) -> None:
    hosts = [
        facts("h", processor=model, flags=frozenset(each.split()))
        for model, each in zip(processors.split(), flags, strict=True)
    ]

    variables = common_numerics(environment, hosts)

    assert " ".join(f"{name}={value}" for name, value in variables.items()) == found


CHOOSE = "NumPy, XLA and others choose their kernels by that, and bits may differ"


@pytest.mark.parametrize(
    ("others", "sentences"),
    [
        ({}, []),
        (
            {"flags": frozenset({"avx"})},
            [f"a has Xeon with avx2, and b, c has Xeon: {CHOOSE}"],
        ),
        ({"processor": "Epyc"}, [f"a has Xeon, and b, c has Epyc: {CHOOSE}"]),
        (
            {"processor": "", "flags": frozenset()},
            [
                "a has Xeon with avx, avx2, and b, c has a processor of no known model of unknown "
                f"abilities: {CHOOSE}"
            ],
        ),
        (
            {"distributions": {"pandas": "2.1", "scipy": "1.0"}},
            [f"pandas is 2.1 on b, c, and 2.2 on a: {SAME}"],
        ),
        (
            {"distributions": {"scipy": "1.0"}},
            [f"pandas is not installed on b, c, and 2.2 on a: {SAME}"],
        ),
    ],
    ids=["alike", "flags", "model", "unknown", "version", "not installed"],
)
def test_what_bits_may_differ_by_is_told_with_both_values(
    others: dict[str, Any], sentences: list[str]
) -> None:
    hosts = [HostSlots(name, slots) for name, slots in (("a", 1), ("b", 1), ("c", 1), ("d", 0))]
    alone = facts("d", processor="Atom", distributions={})
    found = [facts("a"), facts("b", **others), facts("c", **others), alone]

    assert list(may_differ(hosts, found)) == sentences


def test_processors_that_nobody_knows_count_as_different() -> None:
    hosts, unknown = [HostSlots("a", 1), HostSlots("b", 1)], {"processor": "", "flags": frozenset()}

    (line,) = may_differ(hosts, [facts("a", **unknown), facts("b", **unknown)])

    assert line.startswith("a, b has a processor of no known model of unknown abilities")
    assert list(may_differ(hosts[:1], [facts("a", **unknown)])) == []


@pytest.mark.process
def test_kernels_of_an_older_processor_have_its_bits() -> None:
    """OpenBLAS takes the name, or a product has the bits of this very processor."""
    pins = common_numerics({}, [facts("a", processor="A"), facts("b", processor="B")])

    answer = answer_of(program_command(KERNELS), 60.0, os.environ | pins)

    assert pins["OPENBLAS_CORETYPE"] == "HASWELL"
    assert answer.stdout.split() == ["Haswell"], answer.stderr


JOB = (HostSlots("a", 1), HostSlots("b", 1), HostSlots("c", 1))
_AT_START = tuple(facts(host.name, **on_lan(n)) for n, host in enumerate(JOB, start=1))


def refusal(environment: Mapping[str, str] = {}, **changes: Any) -> str:
    """Return why ``b`` may not come back with these changes."""
    line = to_message(replace(_AT_START[1], **changes))
    return why_not_again(JOB, _AT_START, "b", line, QUESTION, environment)


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
        (
            {"processor": "Older", "flags": frozenset({"avx"})},
            "b has another processor by now, and its bits would differ: start the job again, and "
            "all workers have ONEDNN_MAX_CPU_ISA=AVX OPENBLAS_CORETYPE=SANDYBRIDGE",
        ),
        (
            {"devices": Devices("CUDA_VISIBLE_DEVICES", ("0",), ("H100",))},
            "and b has H100: their bits differ",
        ),
    ],
    ids=["version", "processor", "devices"],
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

    assert refusal(held, processor="Newer") == ""


def test_answer_of_another_holdfast_is_refused() -> None:
    line = {"kind": "HostFacts", "cores": 2}

    why = why_not_again(JOB, _AT_START, "b", line, QUESTION, {})

    assert why.startswith("the holdfast of b gives another answer (HostFacts")
