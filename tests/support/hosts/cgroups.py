"""Real control groups for tests: one below the test's own, which is gone afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.runtime.system.own_process import find_levels

_GONE_WITHIN_S = 30.0


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Make a control group with a memory limit; skip the test where that is not possible."""
    levels = find_levels(Path("/"), "memory")
    if not levels:
        pytest.skip("no control group of memory is mounted here")
    group = levels[0] / f"holdfast-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        _limit(group, limit_bytes)
        yield group
    finally:
        _remove(group)


def enter(group: Path) -> str:
    """Return Python code that moves its process, and all that it starts, into ``group``."""
    return f"open({str(group / 'cgroup.procs')!r}, 'w').write('0')\n"


def _limit(group: Path, limit_bytes: int) -> None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        if (group / name).exists():
            (group / name).write_text(str(limit_bytes))
            return
    pytest.skip(f"{group} has no limit of memory: its parent does not hand the controller on")


def _remove(group: Path) -> None:
    """Remove the group; its last processes may take a moment to end."""
    deadline = time.monotonic() + _GONE_WITHIN_S
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
