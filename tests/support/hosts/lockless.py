"""A run directory on hosts with and without locks, and a watch with a clock of its own."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.errors import RunDirectoryBusy
from holdfast.runtime.run.lease import LASTS_S, Lease
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.witnessed_time import Stillness

HERE = f"pid {os.getpid()} on host {os.uname().nodename}"


class Place:
    """A run directory, hosts with and without locks there, and a watch with a clock of its own."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = RunDirectory(path)
        self.directory.prepare()
        self.number: int | None = errno.ENOSYS
        self._flock: Callable[..., Any] = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", self._lock)
        monkeypatch.setattr(Lease, "keep", lambda _: None)  # tests renew by hand
        self.now = 100.0
        self.watch = Stillness(lambda: self.now)

    def _lock(self, descriptor: int, kind: int) -> None:
        if self.number is not None:
            raise OSError(self.number, os.strerror(self.number))
        self._flock(descriptor, kind)

    def take(self) -> Lease:
        return self.directory.acquire_lease(watch=self.watch)

    def watch_to_the_end(self) -> None:
        """Let the watch see the lease for as long as one lasts."""
        with pytest.raises(RunDirectoryBusy):
            self.take()
        self.now += LASTS_S

    @property
    def owner(self) -> dict[str, Any]:
        return self.directory.lease_owner()


def renew(lease: Lease) -> bool:
    return lease._renew(lease.fileno())
