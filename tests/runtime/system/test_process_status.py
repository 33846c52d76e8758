"""What /proc says of a process, shown with real ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from holdfast.runtime.system.processes import (
    SignalState,
    age_s,
    characters_read,
    last_core,
    signal_state,
)

pytestmark = pytest.mark.process

PROGRAM = """
import signal, threading
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
print("ready", flush=True)
threading.Event().wait()
"""


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
