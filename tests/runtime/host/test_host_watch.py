"""What the agent's eye tells of a host of files, and when it asks for a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_host import GIB, MIB, FakeHost

from holdfast.runtime.host import host_watch, memory_forecast
from holdfast.runtime.host.host_limits import HostLimits
from holdfast.runtime.host.host_watch import LOOK_EVERY_S, HostWatch
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.heartbeat import HeartbeatPage, Phase

DEATH = {"kind": "worker_exited", "worker": 1, "cause": "signal SIGKILL", "peak_bytes": 300 * MIB}


@dataclass
class FakeWorker:
    worker: int
    pid: int | None
    page: HeartbeatPage = field(default_factory=HeartbeatPage.create)


class Watched:
    """A watch over three workers of a host of files, in a group of 1 GiB."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = FakeHost(root)
        self.host.version_2("/job")
        self.use(500 * MIB)
        self.shared = (0, GIB)
        self.told: list[Message] = []
        self.saves = 0
        self.resident = {1000 + worker: 100 * MIB for worker in range(3)}
        self.files = dict.fromkeys((*self.resident, os.getpid()), (50, 1024))
        self.workers = [FakeWorker(worker, 1000 + worker) for worker in range(3)]
        monkeypatch.setattr(memory_forecast, "resident_bytes", self.resident.get)
        monkeypatch.setattr(host_watch, "count_open_files", self.files.get)
        limits = HostLimits(
            Path("/dev/shm/job"), root, lambda _: FakeHost.file_system(*self.shared)
        )
        self.watch = HostWatch(limits, self.told.append, self._save)
        self._now = 100.0

    def use(self, used: int) -> None:
        self.host.group_2("/job", used, GIB)

    def train(self, looks: int, more: int = 0, start: int = 500 * MIB) -> None:
        """Look so often, a step later each time, with ``more`` bytes in use."""
        for look in range(looks):
            self.use(min(GIB, start + more * look))
            for watched in self.workers:
                watched.page.phase = Phase.TRAINING
                watched.page.commit(watched.page.step + 1)
            self.look()

    def look(self) -> None:
        self._now += LOOK_EVERY_S
        self.watch.look(self._now, self.workers)

    def kill(self, times: int = 1) -> None:
        """Count victims of the OOM killer."""
        self.host.write("sys/fs/cgroup/job/memory.events.local", oom=9, oom_kill=times)

    def close(self) -> None:
        for watched in self.workers:
            watched.page.close()

    def _save(self) -> None:
        self.saves += 1


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched(tmp_path, monkeypatch)
    yield watched
    watched.close()


def test_steady_job_is_left_alone(watched: Watched) -> None:
    watched.watch.begin(3)
    watched.train(40, start=900 * MIB)

    assert watched.told == []
    assert watched.saves == 0


def test_growth_is_told_with_figures_and_a_checkpoint_is_asked_for_each_time(
    watched: Watched,
) -> None:
    watched.train(5)
    watched.resident[1001] = 300 * MIB

    watched.train(100, more=8 * MIB)

    assert [event["kind"] for event in watched.told] == ["pressure"] * 3
    assert watched.saves == 3
    first = watched.told[0]
    assert first["resource"] == "memory"
    assert first["place"].endswith("/job")
    assert first["limit"] == GIB
    assert first["per_minute"] == pytest.approx(240 * MIB, rel=0.01)
    assert "240 MiB more each minute" in first["text"]
    assert "worker 1 has grown most, to 300 MiB" in first["text"]
    left_s = [event["left_s"] for event in watched.told]
    assert left_s[0] > 60 >= left_s[1] > 15 >= left_s[2]


def test_worker_that_has_hardly_grown_is_not_named(watched: Watched) -> None:
    """Another program of the same group may take the memory."""
    watched.train(5)
    watched.resident[1001] += 10 * MIB

    watched.train(60, more=8 * MIB)

    assert "has grown most" not in watched.told[0]["text"]


def test_growth_before_the_first_steps_is_none(watched: Watched) -> None:
    """Workers that start need more and more memory, and nobody could save yet."""
    for look in range(60):
        watched.use(700 * MIB + look * 5 * MIB)
        for restoring in watched.workers:
            restoring.page.phase = Phase.RESTORING
            restoring.page.resume(10 * look)
        watched.look()

    assert watched.told == []


def test_growth_begins_anew_after_a_death(watched: Watched) -> None:
    """The survivors adopt work, which takes memory once."""
    watched.train(9, more=20 * MIB, start=600 * MIB)
    assert watched.told == []
    watched.workers.pop().page.close()

    watched.train(8, more=20 * MIB, start=800 * MIB)

    assert watched.told == []


def test_shared_memory_that_grows_is_told(watched: Watched) -> None:
    watched.train(5)
    for look in range(30):
        watched.shared = (700 * MIB + look * 10 * MIB, GIB)
        watched.train(1)

    assert {event["resource"] for event in watched.told} == {"shared memory"}
    assert watched.saves > 0


def test_death_with_a_counted_victim_is_the_oom_killers(watched: Watched) -> None:
    watched.train(3)
    watched.kill()

    watched.watch.pass_on(DEATH)
    watched.watch.pass_on(DEATH)

    assert "killed by the kernel's OOM killer" in watched.told[0]["cause"]
    assert "300 MiB resident" in watched.told[0]["cause"]
    assert "/job has 1.0 GiB" in watched.told[0]["cause"]
    assert watched.told[1]["cause"] == "signal SIGKILL"


@pytest.mark.parametrize("cause", ["exit 1", "fenced after 3.00 s of silence", "guard lost"])
def test_death_of_another_cause_keeps_it_and_the_victim_is_kept_for_another(
    watched: Watched, cause: str
) -> None:
    watched.train(3)
    watched.kill()

    watched.watch.pass_on({**DEATH, "cause": cause})
    watched.watch.pass_on(DEATH)

    assert watched.told[0]["cause"] == cause
    assert "OOM killer" in watched.told[1]["cause"]


def test_victims_of_before_a_launch_are_none_of_its_workers(watched: Watched) -> None:
    watched.kill()
    watched.watch.begin(3)

    watched.watch.pass_on(DEATH)

    assert watched.told == [DEATH]


def test_events_that_are_no_deaths_go_on_as_they_are(watched: Watched) -> None:
    watched.watch.pass_on({"kind": "warm", "pid": 3})

    assert watched.told == [{"kind": "warm", "pid": 3}]


def test_limits_that_are_too_small_are_told_before_the_first_launch_only(
    watched: Watched,
) -> None:
    watched.shared = (GIB - 32 * MIB, GIB)
    watched.files[os.getpid()] = (100, 128)
    watched.host.write("sys/fs/cgroup/job/pids.current", 10)
    watched.host.write("sys/fs/cgroup/job/pids.max", 20)

    watched.watch.begin(3)
    watched.watch.begin(3)

    assert [event["resource"] for event in watched.told] == [
        "shared memory",
        "processes and threads",
        "open files",
    ]
    assert watched.saves == 0


def test_worker_that_leaks_files_is_told_once(watched: Watched) -> None:
    watched.train(3)
    watched.files[1002] = (1000, 1024)

    watched.train(60)

    (event,) = watched.told
    assert event["place"] == "worker 2"
    assert event["text"].startswith("open files of worker 2: 1000 of 1024 in use")
    assert watched.saves == 0


def test_processes_that_nobody_may_look_at_are_left_out(watched: Watched) -> None:
    watched.files.clear()
    watched.resident.clear()
    watched.train(5)

    watched.train(60, more=8 * MIB)

    assert {event["resource"] for event in watched.told} == {"memory"}
    assert "has grown most" not in watched.told[0]["text"]


def test_looks_are_two_seconds_apart(watched: Watched) -> None:
    watched.train(3)
    watched.files[1002] = (1000, 1024)
    before = list(watched.told)

    for _ in range(1000):
        watched.watch.look(106.0, watched.workers)

    assert watched.told == before


def test_host_without_workers_is_not_looked_at(watched: Watched) -> None:
    watched.shared = (GIB, GIB)
    for fake in watched.workers:
        fake.pid = None

    watched.train(30)

    assert watched.told == []
