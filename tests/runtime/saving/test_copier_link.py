"""The head has a copier, and does not wait for one that is gone, or stands still."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from cluster import wait_until
from configs import worker_config
from copied_run import Copied
from host_saves import RUN

from holdfast.recovery.event import Event
from holdfast.runtime.run.checkpoint_events import CopiesTold, StepCopied
from holdfast.runtime.saving.copier_link import CopierLink
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.witnessed_time import witnessed_s

pytestmark = pytest.mark.process


class Head:
    """The part of a head that has a copier."""

    def __init__(self, reactor: Reactor, run_dir: Path, url: str | None, *within_s: float) -> None:
        config = worker_config(run_dir=run_dir, run_id=RUN, copy_to=url)
        self.told: list[Event] = []
        self.reactor = reactor
        self.link = CopierLink(reactor, config, self.told.append, *within_s)

    def end(self, *, is_hurried: bool = False) -> None:
        """Wait as the head does at the end of a job."""
        while not self.link.has_ended(witnessed_s(), is_hurried=is_hurried):
            self.reactor.run_once(0.05)

    def copiers(self) -> list[int]:
        found = psutil.Process().children()
        wait_until(
            lambda: all(one.cmdline() for one in found), "command lines: exec sets them late"
        )
        return [one.pid for one in found if "holdfast.runtime.saving.copier" in one.cmdline()]


def test_job_without_a_place_has_no_copier(tmp_path: Path) -> None:
    with closing(Reactor()) as reactor:
        head = Head(reactor, tmp_path, None)
        head.link.poll(witnessed_s())

        assert head.copiers() == []
        assert head.link.has_ended(witnessed_s(), is_hurried=False)


def test_copier_that_is_gone_at_the_end_of_a_job_is_started_once_more(tmp_path: Path) -> None:
    copied = Copied(tmp_path / "run", f"file://{tmp_path}/place")
    with closing(Reactor()) as reactor:
        head = Head(reactor, copied.run_dir, copied.url)
        head.link.poll(witnessed_s())
        (pid,) = head.copiers()
        os.kill(pid, signal.SIGKILL)
        while psutil.pid_exists(pid):
            reactor.run_once(0.05)
        copied.save(10, 20)
        head.end()

    copies = [event.step for event in head.told if isinstance(event, StepCopied)]
    assert copies == [20, 10]
    assert copied.there() == (20, 10)


@pytest.mark.parametrize(
    ("within_s", "is_hurried", "why"),
    [(0.5, False, "nothing has moved for "), (600.0, True, "the time of the job is up")],
)
def test_copier_that_stands_still_is_given_up_at_the_end(
    within_s: float, why: str, tmp_path: Path, *, is_hurried: bool
) -> None:
    copied = Copied(tmp_path / "run", f"file://{tmp_path}/place")
    copied.save(10)
    with closing(Reactor()) as reactor:
        head = Head(reactor, copied.run_dir, copied.url, within_s)
        head.link.poll(witnessed_s())
        (pid,) = head.copiers()
        os.kill(pid, signal.SIGSTOP)
        head.end(is_hurried=is_hurried)

    (told,) = [event for event in head.told if isinstance(event, CopiesTold)]
    assert told.text.startswith(why)
    assert not psutil.pid_exists(pid)
