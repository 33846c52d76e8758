"""A directory on a faulty file system, for a test: mounted, told what goes wrong, and unmounted."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from ctypes.util import find_library
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from faults import Rule

_PROGRAM = Path(__file__).with_name("faulty_server.py")
_MOUNTED_WITHIN_S = 30.0
BOUND_S = 60.0


def whats_missing() -> str:
    """Return what this machine lacks for a file system of our own, "" if nothing."""
    missing = {
        "root": os.geteuid() != 0,
        "/dev/fuse": not os.path.exists("/dev/fuse"),
        "libfuse (Debian: libfuse2 or libfuse3-3)": not (
            find_library("fuse") or find_library("fuse3")
        ),
        "mfusepy (the extra 'test')": find_spec("mfusepy") is None,
    }
    return ", ".join(name for name, lacks in missing.items() if lacks)


needs_a_server = pytest.mark.skipif(
    bool(whats_missing()), reason=f"a file server of our own takes {whats_missing()}"
)


class FaultyMount:
    """A mounted file system whose calls can be made to fail; ``path`` is where it is."""

    def __init__(self, served: Path, mount: Path, **settings: Any) -> None:
        self.path, self.served = mount, served
        self._scratch = tempfile.TemporaryDirectory(prefix="holdfast-faulty-")
        socket_path = str(Path(self._scratch.name) / "orders")
        fields = {"served": str(served), "mount": str(mount), "socket": socket_path, **settings}
        with (Path(self._scratch.name) / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_PROGRAM), json.dumps(fields)], stdout=log, stderr=log
            )
        self._wait_until_mounted()
        self._orders = socket.socket(socket.AF_UNIX)
        self._orders.connect(socket_path)
        self._answers = self._orders.makefile("rb")

    def set(self, *rules: Rule) -> None:
        """Let these rules hold from now on, and no others; what hangs goes on."""
        self._ask({"rules": [dataclasses.asdict(rule) for rule in rules]})

    @contextlib.contextmanager
    def under(self, *rules: Rule) -> Iterator[None]:
        """Let these rules hold within the block, which ends a job whose calls hang."""
        self.set(*rules)
        try:
            yield
        finally:
            self.set()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Let the server stand still as a whole within the block: it takes no call."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def wait_struck(self, index: int = 0, count: int = 1) -> None:
        """Wait until the rule of this index has struck so often.

        Raises:
            TimeoutError: it has not within a minute.
        """
        struck = self.struck(index, count, BOUND_S)
        if struck < count:
            raise TimeoutError(f"rule {index} has struck {struck} times, not {count}")

    def struck(self, index: int = 0, count: int = 0, timeout_s: float = 0.0) -> int:
        """Return how often a rule has struck."""
        answer = self._ask({"index": index, "count": count, "timeout_s": timeout_s})
        return int(answer["struck"])

    def close(self) -> None:
        """Unmount, also while calls hang; nothing stays behind."""
        with contextlib.suppress(OSError):
            self.set()
        # Without a server each call that waits fails at once, so nobody keeps the mount busy.
        self._process.kill()
        self._process.wait()
        while _is_listed(self.path):
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)
        self._answers.close()
        self._orders.close()
        self._scratch.cleanup()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        self._orders.sendall(json.dumps(order).encode() + b"\n")
        answer: dict[str, Any] = json.loads(self._answers.readline())
        return answer

    def _wait_until_mounted(self) -> None:
        until = time.monotonic() + _MOUNTED_WITHIN_S
        while not self.path.is_mount():
            log = (Path(self._scratch.name) / "log").read_text(errors="replace")
            assert self._process.poll() is None, log
            assert time.monotonic() < until, log
            time.sleep(0.01)


def _is_listed(path: Path) -> bool:
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    return any(line.split()[1] == str(path) for line in mounts)


@contextlib.contextmanager
def faulty_mount(folder: Path, name: str = "mount", **settings: Any) -> Iterator[FaultyMount]:
    """Serve ``folder / "served"`` at ``folder / name``, until the end of the block."""
    served, mount = folder / "served", folder / name
    served.mkdir(exist_ok=True)
    mount.mkdir()
    faulty = FaultyMount(served, mount, **settings)
    try:
        yield faulty
    finally:
        faulty.close()
