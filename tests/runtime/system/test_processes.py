"""What Linux says of other processes, and their certain end."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from holdfast.runtime.system.processes import (
    SignalState,
    age_s,
    bears_mark,
    characters_read,
    count_open_files,
    count_threads_of_user,
    describe_status,
    is_alive,
    kill_group,
    kill_tree,
    last_core,
    marked_processes,
    resident_bytes,
    signal_marked,
    signal_state,
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

PROGRAM = """
import signal, threading
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("ready", flush=True)
threading.Event().wait()
"""

STRAYS = """
import os, subprocess
from holdfast.runtime.system.own_process import adopt_orphans
from holdfast.runtime.system.processes import reap_others

adopt_orphans()
shell = ["sh", "-c", "setsid sh -c 'echo $$; exec sleep 600 >/dev/null' &"]
stray = int(subprocess.run(shell, check=True, stdout=subprocess.PIPE).stdout)
os.kill(stray, 9)
own = subprocess.Popen(["sh", "-c", "exit 3"])
for pid in (stray, own.pid):
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
reap_others({own.pid, None})
try:
    os.waitpid(stray, 0)
except ChildProcessError:
    print("reaped", own.wait())
reap_others({None})
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


def test_child_that_has_no_group_yet_is_killed_alone() -> None:
    process = subprocess.Popen(["sleep", "600"])

    kill_group(process.pid)

    assert process.wait() == -signal.SIGKILL


def test_strays_are_reaped_and_a_child_with_an_owner_is_not() -> None:
    """The shell is the stray's parent, and ends at once."""
    run = subprocess.run([sys.executable, "-c", STRAYS], capture_output=True, text=True, check=True)

    assert run.stdout == "reaped 3\n"


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


def test_memory_and_open_files_of_a_process_are_counted_while_it_lives() -> None:
    before, files = resident_bytes(os.getpid()), count_open_files(os.getpid())
    child = subprocess.Popen(["true"])
    child.wait()

    filled = b"x" * (64 << 20)
    with open("/dev/null", "rb"):
        after, more_files = resident_bytes(os.getpid()), count_open_files(os.getpid())

    assert before is not None
    assert after is not None
    assert len(filled) * 0.9 < after - before < len(filled) * 2
    assert files is not None
    assert more_files == (files[0] + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    assert (resident_bytes(child.pid), count_open_files(child.pid)) == (None, None)


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


@pytest.mark.process
def test_signal_that_a_process_blocks_is_caught_blocked_and_then_pending() -> None:
    argv = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        before = signal_state(child.pid, signal.SIGUSR1)
        child.send_signal(signal.SIGUSR1)
        sent = signal_state(child.pid, signal.SIGUSR1)
        other = signal_state(child.pid, signal.SIGUSR2)
        child.kill()

    assert (before.is_caught, before.is_pending) == (True, False)
    assert before.blocked_in == {str(child.pid)}
    assert (sent.is_caught, sent.is_pending) == (True, True)
    assert (other.is_caught, other.is_pending, other.blocked_in) == (False, False, frozenset())
    assert not other.runs_no_code


@pytest.mark.process
def test_stopped_process_runs_no_code_and_a_zombie_is_gone() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        stopped = signal_state(child.pid, signal.SIGUSR1)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = signal_state(child.pid, signal.SIGUSR1)
        core = last_core(child.pid)

    assert (stopped.runs_no_code, stopped.is_gone) == (True, False)
    assert zombie.is_gone
    assert core is not None
    assert 0 <= core < (os.cpu_count() or 1)
    assert (signal_state(child.pid, signal.SIGUSR1), last_core(child.pid)) == (SignalState(), None)


@pytest.mark.process
def test_age_of_a_process_counts_from_its_start() -> None:
    before = time.monotonic()
    with subprocess.Popen(["sleep", "600"]) as child:
        first = age_s(child.pid)
        most = time.monotonic() - before + 1 / os.sysconf("SC_CLK_TCK")
        second = age_s(child.pid)
        child.kill()

    assert 0 <= first <= second
    assert first <= most
    assert age_s(child.pid) == 0


@pytest.mark.process
def test_bytes_that_a_process_reads_are_counted() -> None:
    argv = [sys.executable, "-c", "print('ready', flush=True); print(len(input()), flush=True)"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        child.stdout.readline()
        before = characters_read(child.pid)
        child.stdin.write(b"x" * 100 + b"\n")
        child.stdin.flush()
        child.stdout.readline()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        after = characters_read(child.pid)

    assert after - before >= 101
    assert characters_read(child.pid) == 0


@pytest.fixture
def marked() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A shell that waits for its own child, both with one mark."""
    token = secrets.token_hex(8)
    process = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo begun; wait"],
        env={**os.environ, "HOLDFAST_TEST_MARK": token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        yield f"HOLDFAST_TEST_MARK={token}", process
        for pid in marked_processes(f"HOLDFAST_TEST_MARK={token}"):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.process
def test_signal_reaches_the_marked_process(marked: tuple[str, subprocess.Popen[bytes]]) -> None:
    mark, process = marked

    assert signal_marked(process.pid, mark, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


@pytest.mark.process
def test_signal_does_not_reach_a_process_without_the_mark() -> None:
    """A process id may have been used again."""
    assert not bears_mark(os.getpid(), "HOLDFAST_TEST_MARK=nobody")
    assert not signal_marked(os.getpid(), "HOLDFAST_TEST_MARK=nobody", signal.SIGKILL)


@pytest.mark.process
def test_process_that_has_just_started_bears_its_mark() -> None:
    """It shows no variables until its program is loaded, which takes longer on a busy host."""
    token = secrets.token_hex(8)
    mark = f"HOLDFAST_TEST_MARK={token}"
    found = []
    for _ in range(300):
        environment = {**os.environ, "HOLDFAST_TEST_MARK": token}
        with subprocess.Popen(["sleep", "600"], env=environment) as process:
            found.append(bears_mark(process.pid, mark))
            process.kill()

    assert found == [True] * 300


@pytest.mark.process
def test_process_without_variables_or_that_has_ended_bears_no_mark() -> None:
    with subprocess.Popen(["sleep", "600"], env={}) as process:
        assert not bears_mark(process.pid, "HOLDFAST_TEST_MARK=nobody")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not bears_mark(process.pid, "HOLDFAST_TEST_MARK=nobody")
