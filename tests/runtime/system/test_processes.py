from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from holdfast.runtime.system.processes import (
    count_open_files,
    count_threads_of_user,
    describe_status,
    is_alive,
    kill_group,
    kill_tree,
    resident_bytes,
    wait_all_ended,
)

BOUND_S = 90.0
FAMILY = """
import subprocess, sys
child = (
    "import subprocess; p = subprocess.Popen(['sleep', '600']);"
    "print(p.pid, flush=True); p.wait()"
)
p = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
print(p.pid, flush=True)
p.wait()
"""


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_tree_is_killed_even_in_other_sessions() -> None:
    root = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, text=True)
    assert root.stdout is not None
    descendants = [int(root.stdout.readline()), int(root.stdout.readline())]

    kill_tree(root.pid)

    assert root.wait() == -signal.SIGKILL
    assert wait_all_ended(descendants, BOUND_S) == ()
    root.stdout.close()


def test_killing_a_tree_that_is_gone_is_harmless(sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.kill()
    sleeper.wait()

    kill_tree(sleeper.pid)

    assert sleeper.returncode == -signal.SIGKILL


def test_group_is_killed_with_its_leader(sleeper: subprocess.Popen[bytes]) -> None:
    kill_group(sleeper.pid)

    assert sleeper.wait() == -signal.SIGKILL


def test_child_that_has_no_group_yet_is_killed_alone() -> None:
    process = subprocess.Popen(["sleep", "600"])

    kill_group(process.pid)

    assert process.wait() == -signal.SIGKILL


def test_waiting_names_who_has_not_ended(sleeper: subprocess.Popen[bytes]) -> None:
    ended = subprocess.Popen(["true"])

    assert wait_all_ended([ended.pid], BOUND_S) == ()
    assert wait_all_ended([ended.pid, sleeper.pid], 0.0) == (sleeper.pid,)
    assert wait_all_ended([], 0.0) == ()
    ended.wait()
    assert wait_all_ended([ended.pid], 0.0) == ()


def test_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    assert is_alive(sleeper.pid)

    sleeper.kill()
    wait_all_ended([sleeper.pid], BOUND_S)

    assert not is_alive(sleeper.pid)
    sleeper.wait()
    assert not is_alive(sleeper.pid)


def test_memory_that_a_process_fills_is_resident() -> None:
    before = resident_bytes(os.getpid())

    filled = b"x" * (64 << 20)

    after = resident_bytes(os.getpid())
    assert before is not None
    assert after is not None
    assert len(filled) * 0.9 < after - before < len(filled) * 2


def test_open_files_are_counted_beside_their_limit() -> None:
    before, limit = count_open_files(os.getpid()) or (0, 0)
    fd = os.open("/dev/null", os.O_RDONLY)

    after, _ = count_open_files(os.getpid()) or (0, 0)

    os.close(fd)
    assert after == before + 1
    assert limit == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_process_that_is_gone_has_no_memory_and_no_files() -> None:
    child = subprocess.Popen(["true"])
    child.wait()

    assert resident_bytes(child.pid) is None
    assert count_open_files(child.pid) is None


def test_process_without_a_descriptor_left_reads_nothing_and_does_not_fail() -> None:
    code = (
        "import os, resource\n"
        "from pathlib import Path\n"
        "from holdfast.runtime.system.processes import count_open_files, resident_bytes\n"
        "from holdfast.runtime.host.limits import HostLimits\n"
        "limits = HostLimits(Path('/dev/shm/job'))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "assert resident_bytes(os.getpid()) is None\n"
        "assert count_open_files(os.getpid()) is None\n"
        "assert limits.memory() == limits.processes() == []\n"
        "assert limits.oom_kills() is None\n"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_threads_of_a_user_are_counted_where_they_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100_000, 200_000))
    user = os.getuid() or 65534
    with subprocess.Popen(["sleep", "600"], user=user) as child:
        found = count_threads_of_user(user)
        child.kill()

    assert found is not None
    assert found[0] >= 1
    assert found[1] == 100_000
    assert count_threads_of_user(0) is None  # root has no limit


def test_user_without_a_limit_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    most = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))

    assert count_threads_of_user(65534) is None


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (0, "exit 0"),
        (3, "exit 3"),
        (-9, "signal SIGKILL"),
        (-11, "signal SIGSEGV"),
        (-99, "signal 99"),
    ],
)
def test_status_is_described(status: int, text: str) -> None:
    assert describe_status(status) == text
