"""What real processes are doing is found out, or given up in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.runtime.system.processes import signal_state
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.worker.stacks import MOST_S, Inquiry

pytestmark = pytest.mark.process

PROGRAM = """
import ctypes, os, re, signal, sys, threading
from holdfast.runtime.worker.stacks import STACK_SIGNAL, listen
from holdfast.runtime.system.worker_status import WorkerStatus

def loop_for_ever():
    print("ready", flush=True)
    while True:
        pass

def match_for_ever():
    print("ready", flush=True)
    re.match(r"(a+)+$", "a" * 60 + "b")

def stop_for_ever():
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

def block_for_ever():
    signal.pthread_sigmask(signal.SIG_BLOCK, {STACK_SIGNAL})
    print("ready", flush=True)
    threading.Event().wait()

if sys.argv[2] != "deaf":
    listen(WorkerStatus(int(sys.argv[1])))
{"deaf": loop_for_ever, "loop": loop_for_ever, "match": match_for_ever,
 "stop": stop_for_ever, "block": block_for_ever}[sys.argv[2]]()
"""


@contextmanager
def process(kind: str) -> Iterator[tuple[int, WorkerStatus]]:
    page = WorkerStatus.create()
    argv = [sys.executable, "-c", PROGRAM, str(page.fd), kind]
    with subprocess.Popen(argv, pass_fds=[page.fd], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            if kind == "stop":
                os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
            yield child.pid, page
        finally:
            child.kill()
            page.close()


def result_of(pid: int, page: WorkerStatus) -> Inquiry:
    """Look until the inquiry is over, by the real clock."""
    inquiry = Inquiry(pid, page, time.monotonic())
    while not inquiry.is_over:
        time.sleep(0.002)
        inquiry.poll(time.monotonic())
    return inquiry


@pytest.mark.parametrize("kind", ["loop", "match"])
def test_process_that_runs_writes_its_stacks(kind: str) -> None:
    with process(kind) as (pid, page):
        first, second = result_of(pid, page), result_of(pid, page)

    for found in (first, second):
        main = found.stacks.threads[0]
        assert f"{kind}_for_ever" in [frame.name for frame in main.frames]


def test_process_that_has_no_handler_is_not_sent_a_signal() -> None:
    with process("deaf") as (pid, page):
        found = Inquiry(pid, page, 0.0)

        assert found.is_over
        assert found.stacks.threads == ()
        assert signal_state(pid, signal.SIGKILL).state in ("R", "S")


def test_stopped_process_is_not_asked_and_stays_stopped() -> None:
    with process("stop") as (pid, page):
        assert Inquiry(pid, page, 0.0).is_over
        assert signal_state(pid, signal.SIGKILL).state == "T"


def test_inquiry_without_an_answer_ends_in_time() -> None:
    """The time is the test's: no process is waited for."""
    with process("block") as (pid, page):
        inquiry = Inquiry(pid, page, 100.0)
        inquiry.poll(100.0 + MOST_S / 2)
        assert not inquiry.is_over
        inquiry.poll(100.0 + MOST_S)

    assert inquiry.is_over
    assert inquiry.stacks.threads == ()


def test_process_that_is_gone_leaves_nothing_to_ask() -> None:
    with process("loop") as (pid, page):
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

        assert Inquiry(pid, page, 0.0).is_over
