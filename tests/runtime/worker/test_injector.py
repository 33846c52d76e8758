"""Faults strike at their address, once, and in the way that their kind does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.recovery.fault import Fault, FaultKind, Site, Visit, index_faults
from holdfast.recovery.world import WorkerId
from holdfast.runtime.worker.injector import FaultInjector

ME, OTHER = WorkerId(2), WorkerId(3)
STRIKES = """
import resource, sys
from holdfast.recovery.fault import Fault, FaultKind, Site, index_faults
from holdfast.runtime.worker.injector import FaultInjector

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
plan = index_faults([Fault(FaultKind(sys.argv[1]), 0, 1)])
FaultInjector(0, plan, announce=lambda visit, kind: None).visit(1, Site.COMPUTE)
"""


class Struck:
    """An injector whose faults only leave a note, and what it has announced and struck."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.story: list[object] = []
        self.injector = FaultInjector(
            ME,
            index_faults(faults),
            announce=lambda visit, kind: self.story.append((visit, kind)),
            strike=self.story.append,
        )

    def strikes(self, step: int, site: Site) -> bool:
        """Return whether a visit is struck."""
        before = len(self.story)
        self.injector.visit(step, site)
        return len(self.story) > before


def test_attempts_are_counted_at_each_site_of_each_step() -> None:
    struck = Struck([Fault(FaultKind.STOP, ME, 7, Site.VOTE, attempt=2)])

    found = [
        struck.strikes(step, site)
        for step, site in [
            (7, Site.VOTE), (7, Site.APPLY), (8, Site.VOTE), (7, Site.VOTE), (7, Site.VOTE),
        ]
    ]  # fmt: skip

    assert found == [False, False, False, True, False]
    assert struck.story == [(Visit(ME, 7, Site.VOTE, 2), FaultKind.STOP), FaultKind.STOP]
    assert Struck([]).injector.is_idle


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [
        (FaultKind.KILL, -signal.SIGKILL, ""),
        (FaultKind.EXIT, 1, ""),
        (FaultKind.SEGFAULT, -signal.SIGSEGV, ""),
        (FaultKind.RAISE, 1, "InjectedFault: the fault plan asked for this exception"),
    ],
    ids=lambda value: value.value if isinstance(value, FaultKind) else None,
)
def test_each_kind_of_death_is_the_real_one(
    tmp_path: Path, kind: FaultKind, code: int, words: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STRIKES, kind.value],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert ended.returncode == code
    assert words in ended.stderr
    assert bool(ended.stderr) == bool(words)


@pytest.mark.process
def test_worker_that_stops_is_still_there(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", STRIKES, "stop"], cwd=tmp_path) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        process.kill()

    assert os.WIFSTOPPED(status)
    assert os.WSTOPSIG(status) == signal.SIGSTOP
    assert process.returncode == -signal.SIGKILL
