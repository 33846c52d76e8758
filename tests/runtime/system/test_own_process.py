"""What a process sets for itself and for what it starts."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.runtime.system import own_process
from holdfast.runtime.system.own_process import (
    answer_of,
    by_env,
    die_with_parent,
    has_ended,
    is_single_threaded,
    program_command,
    thread_count,
    trim_memory,
    usable_cores,
)


def test_usable_cores_respects_affinity_and_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    grants = [(None, cores), (0.5, 1), (1.0, 1), (1000.0, cores)]

    for granted, expected in grants:
        monkeypatch.setattr(own_process, "granted_cores", lambda granted=granted: granted)
        assert usable_cores() == expected


@pytest.mark.parametrize(("is_its_parent", "code"), [(True, 0), (False, -signal.SIGKILL)])
def test_process_whose_parent_is_another_one_ends_at_once(
    code: int, *, is_its_parent: bool
) -> None:
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent if is_its_parent else os.getpid())
        os._exit(0)

    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == code


def test_threads_are_counted() -> None:
    before = thread_count()
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()

    assert thread_count() == before + 1
    assert not is_single_threaded(0.0)
    ended.set()
    thread.join()


def test_answer_of_a_program_has_what_it_read_and_said_and_its_code() -> None:
    program = "import sys; print(len(sys.stdin.read())); sys.stderr.write('words'); sys.exit(3)"

    done = answer_of(program_command(program), 60.0, os.environ, "x" * 100_000)

    assert (done.stdout, done.stderr, done.returncode) == ("100000\n", "words", 3)


def test_program_that_does_not_end_in_time_is_killed() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]

    with pytest.raises(subprocess.TimeoutExpired):
        answer_of(command, 0.2, os.environ)


@pytest.mark.process
@pytest.mark.parametrize("hangs", [True, False], ids=["hangs in the kernel", "ends"])
def test_child_that_was_killed_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, *, hangs: bool
) -> None:
    """A process in the state D does not end, as its wait shows."""
    process = subprocess.Popen(["sleep", "600"])
    process.kill()

    def wait(timeout: float) -> int:
        raise subprocess.TimeoutExpired("sleep", timeout)

    with monkeypatch.context() as patch:
        if hangs:
            patch.setattr(process, "wait", wait)
            patch.setattr(process, "poll", lambda: None)
        assert has_ended(process, 0.1 if hangs else 60.0) is not hangs
    process.wait()


def test_program_is_loaded_by_env_unless_its_name_would_be_a_variable() -> None:
    assert by_env(["/opt/python", "-c", "a=b"]) == ["/usr/bin/env", "/opt/python", "-c", "a=b"]
    assert by_env(["/a=b/python", "-c"]) == ["/a=b/python", "-c"]


def test_freed_memory_between_pieces_in_use_returns_to_the_system() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    pieces = [ctypes.c_void_p(libc.malloc(_PIECE_BYTES)) for _ in range(_PIECES)]
    for piece in pieces:
        ctypes.memset(piece, 1, _PIECE_BYTES)
    kept = [piece for number, piece in enumerate(pieces) if number % 8 == 0]
    for piece in pieces:
        if piece not in kept:
            libc.free(piece)
    before = _resident_bytes()

    trim_memory()

    assert before - _resident_bytes() > _PIECES * _PIECE_BYTES // 2
    for piece in kept:
        libc.free(piece)


_PIECES, _PIECE_BYTES = 640, 100_000  # the C library takes larger ones from the system each


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
