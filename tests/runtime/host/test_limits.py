"""Limits of hosts that are made of files, and of this one; what the agent's eye tells of them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from fake_host import GIB, MIB, NO_LIMIT, FakeHost

from holdfast.recovery.event import Event, WorkerExited
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host import limits as host_limits
from holdfast.runtime.host.limits import (
    HOST,
    LOOK_EVERY_S,
    HostLimits,
    HostWatch,
)
from holdfast.runtime.run.events import Pressure
from holdfast.runtime.system.own_process import Resource, Usage, find_levels, granted_cores
from holdfast.runtime.system.witnessed_time import witnessed_s

DIRECTORY = Path("/dev/shm/holdfast-1-x")
DEATH = WorkerExited(WorkerId(1), "signal SIGKILL", peak_bytes=300 * MIB)
_MORE_ROOM = "or make room: a larger /dev/shm (docker: --shm-size), or another TMPDIR"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def limits_of(host: FakeHost, used: int = 1 * GIB, limit: int = 4 * GIB) -> HostLimits:
    return HostLimits(DIRECTORY, host.root, lambda _: FakeHost.file_system(used, limit))


def memory_of(host: FakeHost) -> dict[str, tuple[int, int]]:
    """Return used and limit by place, a group by its path below the mount."""
    groups = str(host.root / "sys/fs/cgroup")
    return {
        usage.place.replace(f"the cgroup {groups}", ""): (usage.used, usage.limit)
        for usage in limits_of(host).memory()
    }


def test_every_group_up_to_the_mount_counts_if_it_has_a_limit(host: FakeHost) -> None:
    host.version_2("/job/step/task")
    host.group_2("/job/step/task", GIB, "max")
    host.group_2("/job/step", GIB, 3 * GIB)
    host.group_2("/job", 4 * GIB, 4 * GIB, files=2 * GIB)  # one that reads much is always full

    assert memory_of(host) == {
        "/job/step": (GIB, 3 * GIB),
        "/job": (2 * GIB, 4 * GIB),
        HOST: (2 * GIB, 8 * GIB),
    }


def test_version_1_has_its_own_files(host: FakeHost) -> None:
    host.write("proc/self/cgroup", "9:name=systemd:/\n5:cpu,memory:/job\n0::/")
    host.group_1("/job", 2 * GIB, 3 * GIB, files=GIB)
    host.group_1("", 5 * GIB, NO_LIMIT)

    assert memory_of(host) == {"/memory/job": (GIB, 3 * GIB), HOST: (2 * GIB, 8 * GIB)}


def test_mount_of_a_container_is_its_own_group(host: FakeHost) -> None:
    """The kernel may tell the path that the host has for it, which is not mounted here."""
    host.version_2("/docker/4f0c2d")
    host.group_2("", GIB, 2 * GIB)

    assert memory_of(host)[""] == (GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("path", "mount", "levels"),
    [
        ("/../../other", "sys/fs/cgroup", [""]),  # a group outside of a namespace of groups
        ("/..", "sys/fs/cgroup", [""]),
        ("/job", "sys/fs/cgroup/unified", ["job", ""]),  # beside version 1
    ],
)
def test_groups_are_followed_up_to_their_mount_and_not_outside(
    host: FakeHost, path: str, mount: str, levels: list[str]
) -> None:
    host.version_2(path, mount=mount)
    host.write(f"{mount}/job/memory.max", 3)

    assert find_levels(host.root, "memory") == tuple(host.root / mount / level for level in levels)


@pytest.mark.parametrize(
    ("group", "quotas", "cores"),
    [
        ("0::/", {"": "200000 100000"}, 2.0),
        ("0::/job/step", {"job": "150000 100000"}, 1.5),
        ("0::/job/step", {"": "max 1", "job": "400000 100000", "job/step": "800000 100000"}, 4.0),
        ("4:cpuset:/\n3:cpu,cpuacct:/job\n0::/", {"cpu,cpuacct/job": "300000 100000"}, 3.0),
        ("3:cpu:/docker/4f0c2d", {"cpu": "50000 100000"}, 0.5),
        ("3:cpu:/", {"cpu": "-1 100000"}, None),
        ("0::/", {"": "max 100000"}, None),
        ("0::/", {"": "many"}, None),
    ],
    ids=[
        *("mount", "below the mount", "smallest level", "version 1", "container of version 1"),
        *("no quota of version 1", "no quota", "no sense"),
    ],
)
def test_cores_are_those_of_the_smallest_quota(
    tmp_path: Path, group: str, quotas: dict[str, str], cores: float | None
) -> None:
    host = FakeHost(tmp_path)
    host.version_2("/")
    host.write("proc/self/cgroup", group)
    for place, text in quotas.items():
        if place.startswith("cpu"):
            quota, period = text.split()
            host.write(f"sys/fs/cgroup/{place}/cpu.cfs_quota_us", quota)
            host.write(f"sys/fs/cgroup/{place}/cpu.cfs_period_us", period)
        else:
            host.write(f"sys/fs/cgroup/{place}/cpu.max", text)

    assert granted_cores(host.root) == cores


def test_files_that_make_no_sense_are_no_limits(host: FakeHost) -> None:
    host.version_2("/job")
    host.group_2("/job", GIB, "many")
    host.write("proc/meminfo", "MemTotal: lots\n")
    host.write("proc/loadavg", "none")

    assert limits_of(host).memory() == []
    assert limits_of(host).processes() == []


def test_file_system_of_shared_memory_has_a_size_as_long_as_it_is_there(host: FakeHost) -> None:
    def gone(_: Path) -> os.statvfs_result:
        raise FileNotFoundError

    (usage,) = limits_of(host, used=GIB, limit=4 * GIB).shared_memory()
    assert usage == Usage(Resource.SHARED_MEMORY, "/dev/shm", GIB, 4 * GIB)
    assert HostLimits(DIRECTORY, host.root, gone).shared_memory() == []


def test_processes_are_limited_by_groups_and_by_the_host(host: FakeHost) -> None:
    host.version_2("/job")
    host.write("sys/fs/cgroup/job/pids.current", 90)
    host.write("sys/fs/cgroup/job/pids.max", 100)
    host.write("sys/fs/cgroup/pids.current", 300)
    host.write("sys/fs/cgroup/pids.max", "max")
    host.threads(500, 32768)

    found = [(usage.used, usage.limit) for usage in limits_of(host).processes()]

    assert found == [(90, 100), (500, 32768)]


@pytest.mark.parametrize("version", [1, 2])
def test_kills_are_counted_by_the_nearest_group(host: FakeHost, version: int) -> None:
    host.version_2("/job/own")
    if version == 1:
        host.write("proc/self/cgroup", "5:memory:/job/own")
        host.write("sys/fs/cgroup/memory/job/own/memory.oom_control", under_oom=0, oom_kill=2)
        host.write("sys/fs/cgroup/memory/job/memory.oom_control", oom_kill=7)
    else:  # it counts those of subgroups in all groups above as well
        (host.root / "sys/fs/cgroup/job/own").mkdir(parents=True)
        host.write("sys/fs/cgroup/job/memory.events", oom=5, oom_kill=5)
        host.write("sys/fs/cgroup/job/memory.events.local", oom=5, oom_kill=2)
    host.write("proc/vmstat", oom_kill=9)

    limits = limits_of(host)
    assert (limits.oom_kills(), limits.counts_own_kills) == (2, True)


def test_this_host_has_limits(tmp_path: Path) -> None:
    limits = HostLimits(tmp_path)

    for usage in [*limits.memory(), *limits.shared_memory(), *limits.processes()]:
        assert 0 <= usage.used <= usage.limit + 64 * MIB, usage
    assert HOST in {usage.place for usage in limits.memory()}
    assert HOST in {usage.place for usage in limits.processes()}
    assert limits.oom_kills() is not None


class Watched:
    """A watch over the workers of a host of files, in a group of 1 GiB."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host = FakeHost(root)
        self.host.version_2("/job")
        self.use(500 * MIB)
        self.shared = (0, GIB)
        self.told: list[Event] = []
        self.files = {os.getpid(): (50, 1024)}
        self.has_workers = True
        monkeypatch.setattr(host_limits, "count_open_files", self.files.get)
        limits = HostLimits(
            Path("/dev/shm/job"), root, lambda _: FakeHost.file_system(*self.shared)
        )
        self.watch = HostWatch(limits, self.told.append)
        self.now = witnessed_s()

    def use(self, used: int) -> None:
        self.host.group_2("/job", used, GIB)

    def poll(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += LOOK_EVERY_S
            self.watch.poll(self.now, has_workers=self.has_workers)

    def count_kills(self, *counts: int | None) -> None:
        """Let each look show such a count of victims of the OOM killer."""
        for count in counts:
            if count is None:
                (self.host.root / "sys/fs/cgroup/job/memory.events.local").write_text("")
            else:
                self.host.write("sys/fs/cgroup/job/memory.events.local", oom=9, oom_kill=count)
            self.poll()

    def causes(self, *deaths: WorkerExited) -> list[bool]:
        """Return of which deaths the OOM killer is the cause."""
        explained = [self.watch.explained(death) for death in deaths]
        return ["OOM killer" in death.cause for death in explained]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(tmp_path, monkeypatch)


def test_shared_memory_that_is_nearly_full_is_told_once(watched: Watched) -> None:
    watched.poll(3)
    watched.shared = (950 * MIB, GIB)

    watched.poll()
    assert len(watched.told) == 1, "the next look sees it: a leak may be fast"
    watched.poll(40)

    (event,) = watched.told
    assert isinstance(event, Pressure)
    assert (event.resource, event.place) == ("shared memory", "/dev/shm")
    assert (event.used, event.limit) == (950 * MIB, GIB)
    assert event.text == (
        "shared memory of /dev/shm: 950 MiB of 1.0 GiB in use; at the limit workers die; use "
        f"fewer workers, {_MORE_ROOM}; asking for a checkpoint"
    )


@pytest.mark.parametrize(
    ("uses", "told"),
    [
        ([10, 50, 90], []),
        ([91], [91]),
        ([91, 95, 100, 85, 99], [91]),
        ([91, 79, 92], [91, 92]),
        ([91, 80, 92], [91]),
        ([100, 0, 100, 0], [100, 100]),
        ([95, None, 95], [95]),  # a file that cannot be read for once
    ],
)
def test_use_is_told_above_90_percent_and_again_after_it_was_below_80(
    watched: Watched, uses: list[int | None], told: list[int]
) -> None:
    for used in uses:
        if used is None:
            watched.host.write("sys/fs/cgroup/job/memory.current", "none")
        else:
            watched.host.group_2("/job", used * MIB, 100 * MIB)
        watched.poll()

    pressures = [event for event in watched.told if isinstance(event, Pressure)]
    assert [event.used for event in pressures] == [used * MIB for used in told]


def test_death_with_a_counted_victim_is_the_oom_killers(watched: Watched) -> None:
    watched.count_kills(0, 1)

    death = watched.watch.explained(DEATH)

    assert death.cause == (
        "out of memory: killed by the kernel's OOM killer, it had 300 MiB resident, the cgroup "
        f"{watched.host.root}/sys/fs/cgroup/job has 1.0 GiB"
    )


@pytest.mark.parametrize(
    ("counts", "explained"),
    [
        ((0, 1), 1),
        ((0, 1, 3), 3),
        ((5, 5), 0),
        ((5, 6), 1),
        ((None, 5, None), 0),
        ((5, None, 6), 1),  # the next count that can be read is compared with the last one
        ((5, 0), 0),  # the job was moved to another group
        ((0, 1, *[1] * 31), 0),  # a victim that was none of ours is forgotten after a minute
    ],
)
def test_no_more_deaths_are_explained_than_were_counted(
    watched: Watched, counts: tuple[int | None, ...], explained: int
) -> None:
    watched.count_kills(*counts)

    assert watched.causes(*[DEATH] * 4) == [True] * explained + [False] * (4 - explained)


@pytest.mark.parametrize("cause", ["exit 1", "fenced after 3.00 s of silence", "guard lost"])
def test_death_of_another_cause_keeps_it_and_the_victim_is_kept_for_another(
    watched: Watched, cause: str
) -> None:
    watched.count_kills(0, 1)

    assert watched.causes(replace(DEATH, cause=cause), DEATH) == [False, True]


def test_victims_of_before_a_launch_are_none_of_its_workers(watched: Watched) -> None:
    watched.count_kills(0, 1)
    watched.watch.begin(3)

    assert watched.watch.explained(DEATH) == DEATH


def test_limits_that_are_too_small_are_told_before_the_first_launch_only(
    watched: Watched,
) -> None:
    watched.shared = (GIB - 32 * MIB, GIB)
    watched.files[os.getpid()] = (100, 128)
    watched.host.write("sys/fs/cgroup/job/pids.current", 10)
    watched.host.write("sys/fs/cgroup/job/pids.max", 20)

    watched.watch.begin(3)
    watched.watch.begin(3)

    told = [event for event in watched.told if isinstance(event, Pressure)]
    assert [event.resource for event in told] == [
        "shared memory",
        "processes and threads",
        "open files",
    ]
    assert told[0].text == (
        "3 workers need about 48.0 MiB of shared memory, and 32.0 MiB of 1.0 GiB are free "
        f"(/dev/shm): use fewer workers, {_MORE_ROOM}"
    )


def test_looks_are_two_seconds_apart_while_there_are_workers(watched: Watched) -> None:
    watched.poll(3)
    watched.use(950 * MIB)

    for _ in range(1000):
        watched.watch.poll(watched.now + LOOK_EVERY_S / 2, has_workers=True)
    watched.has_workers = False
    watched.poll(30)

    assert watched.told == []


def test_death_by_the_oom_killer_has_no_more_figures_than_are_known() -> None:
    words = host_limits.describe_oom_kill(None, None, is_certain=False)

    assert words == "out of memory: probably killed by the kernel's OOM killer"
