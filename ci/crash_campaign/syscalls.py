"""System calls of a victim, seen and spoilt by strace.

A victim is a fork of this process, which has loaded everything already: it waits until
strace has attached, and then does its work.  So all its calls belong to the work, and the
n-th of a kind is always the same one.  A case takes tens of milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

NAMES = (
    "open", "openat", "close", "fstat", "lstat", "stat", "newfstatat", "statx", "getdents64",
    "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2",
    "fallocate", "pwritev", "pwritev2", "preadv", "preadv2", "fsync", "fdatasync", "write",
)  # fmt: skip
_CALL = re.compile(r"(?P<name>[a-z0-9_]+)\((?P<rest>.*)")
_PR_SET_PTRACER, _ANYBODY = 0x59616D61, ctypes.c_ulong(-1)


@dataclass(frozen=True, slots=True)
class Call:
    """The ``number``-th call of its name, counted from 1; ``text`` is what strace shows of it."""

    name: str
    number: int
    text: str

    def __str__(self) -> str:
        return f"{self.name} #{self.number} ({self.text[:110]})"


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of a call, before it has done anything: an errno's name, or ``KILL``."""

    call: Call
    kind: str

    @property
    def option(self) -> str:
        """The fault as strace wants it."""
        effect = "signal=KILL" if self.kind == "KILL" else f"error={self.kind}"
        return f"inject={self.call.name}:{effect}:when={self.call.number}"

    def __str__(self) -> str:
        return f"{self.kind} at {self.call}"


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a victim: its exit code or minus its signal, its words, and its calls."""

    code: int
    said: str
    trace: str


def why_not() -> str | None:
    """Return why system calls cannot be traced here, None if they can."""
    if shutil.which("strace") is None:
        return "strace is missing; install it (apt-get install strace)"
    if not run_victim(lambda _: os.close(os.dup(0)), []).trace:
        return "strace cannot attach here; allow ptrace, or run as root"
    return None


def record(work: Callable[[Callable[[str], None]], None]) -> list[Call]:
    """Return the calls that ``work`` makes when nothing goes wrong, in their order."""
    ended = run_victim(work, [])
    if ended.code != 0:
        raise SystemExit(f"the victim fails without any fault: {ended}")
    counts: Counter[str] = Counter()
    calls = []
    for line in ended.trace.splitlines():
        if match := _CALL.match(line):
            counts[match["name"]] += 1
            calls.append(Call(match["name"], counts[match["name"]], match["rest"]))
    return calls


def run_victim(work: Callable[[Callable[[str], None]], None], faults: Sequence[Fault]) -> Ended:
    """Fork, attach strace with the faults, let ``work`` run; it is given what to speak with."""
    go_read, go_write = os.pipe()
    said_read, said_write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(go_write)
        _be_victim(work, go_read, said_write)
    os.close(go_read)
    os.close(said_write)
    with tempfile.NamedTemporaryFile(prefix="holdfast-trace-") as trace:
        strace = _attach(child, faults, trace.name)
        os.close(go_write)  # go
        with os.fdopen(said_read, encoding="utf-8") as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        strace.communicate()
        text = Path(trace.name).read_text(encoding="utf-8", errors="replace")
    return Ended(os.waitstatus_to_exitcode(status), said, text)


def _attach(child: int, faults: Sequence[Fault], output: str) -> subprocess.Popen[str]:
    names = ",".join(f"?{name}" for name in NAMES)
    options = [part for fault in faults for part in ("-e", fault.option)]
    strace = subprocess.Popen(
        ["strace", "-p", str(child), "-o", output, "-e", f"trace={names}", *options],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert strace.stderr is not None
    strace.stderr.readline()  # "attached", or the end because it could not
    return strace


def _be_victim(work: Callable[[Callable[[str], None]], None], go: int, said: int) -> None:
    """Wait for the word, work, and leave with 0, or 1 for an exception; never returns."""
    code = 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)
        os.read(go, 1)
        work(lambda text: _say(said, text))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _say(pipe: int, text: str) -> None:
    os.write(pipe, text.encode() + b"\n")
