"""Limits of hosts that are made of files, and those of this one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fake_host import GIB, MIB, NO_LIMIT, FakeHost

from holdfast.runtime.host.host_limits import HOST, HostLimits, OomKills, find_levels
from holdfast.runtime.system.usage import Resource, Usage

DIRECTORY = Path("/dev/shm/holdfast-1-x")


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


def test_host_without_groups_has_the_limit_of_its_memory(host: FakeHost) -> None:
    assert memory_of(host) == {HOST: (2 * GIB, 8 * GIB)}


def test_every_group_up_to_the_mount_counts_if_it_has_a_limit(host: FakeHost) -> None:
    host.version_2("/job/step/task")
    host.group_2("/job/step/task", GIB, "max")
    host.group_2("/job/step", GIB, 3 * GIB)
    host.group_2("/job", 2 * GIB, 4 * GIB)

    assert memory_of(host) == {
        "/job/step": (GIB, 3 * GIB),
        "/job": (2 * GIB, 4 * GIB),
        HOST: (2 * GIB, 8 * GIB),
    }


def test_pages_of_files_are_not_in_use(host: FakeHost) -> None:
    """A group that reads much is always full, and nothing is wrong with it."""
    host.version_2("/job")
    host.group_2("/job", 4 * GIB, 4 * GIB, files=3 * GIB)

    assert memory_of(host)["/job"] == (GIB, 4 * GIB)


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


@pytest.mark.parametrize("path", ["/../../other", "/.."])
def test_group_outside_the_mount_is_not_followed(host: FakeHost, path: str) -> None:
    """In a namespace of groups an outer group has such a path."""
    host.version_2(path)

    assert find_levels(host.root, "memory") == (host.root / "sys/fs/cgroup",)


def test_version_2_may_be_mounted_beside_version_1(host: FakeHost) -> None:
    host.version_2("/job", mount="sys/fs/cgroup/unified")
    host.write("sys/fs/cgroup/unified/job/memory.max", 3)

    levels = find_levels(host.root, "memory")

    unified = host.root / "sys/fs/cgroup/unified"
    assert levels == (unified / "job", unified)


def test_files_that_make_no_sense_are_no_limits(host: FakeHost) -> None:
    host.version_2("/job")
    host.group_2("/job", GIB, "many")
    host.write("proc/meminfo", "MemTotal: lots\n")
    host.write("proc/loadavg", "none")

    assert limits_of(host).memory() == []
    assert limits_of(host).processes() == []


def test_file_system_of_shared_memory_has_a_size(host: FakeHost) -> None:
    (usage,) = limits_of(host, used=GIB, limit=4 * GIB).shared_memory()

    assert usage == Usage(Resource.SHARED_MEMORY, "/dev/shm", GIB, 4 * GIB)


def test_file_system_that_is_gone_has_no_limit(host: FakeHost) -> None:
    def gone(_: Path) -> os.statvfs_result:
        raise FileNotFoundError

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
    else:
        (host.root / "sys/fs/cgroup/job/own").mkdir(parents=True)
        host.write("sys/fs/cgroup/job/memory.events", oom=5, oom_kill=2)
    host.write("proc/vmstat", oom_kill=9)

    assert limits_of(host).oom_kills() == OomKills(2, are_ours=True)


def test_kills_in_subgroups_are_not_ours(host: FakeHost) -> None:
    """Version 2 counts them in all groups above as well."""
    host.version_2("/job")
    host.group_2("/job", GIB, GIB)
    host.write("sys/fs/cgroup/job/memory.events", oom=5, oom_kill=5)
    host.write("sys/fs/cgroup/job/memory.events.local", oom=1, oom_kill=1)

    assert limits_of(host).oom_kills() == OomKills(1, are_ours=True)


def test_kills_of_the_host_count_where_no_group_does(host: FakeHost) -> None:
    host.version_2("/")
    host.write("proc/vmstat", pgfault=1, oom_kill=9)

    assert limits_of(host).oom_kills() == OomKills(9, are_ours=False)


def test_this_host_has_limits(tmp_path: Path) -> None:
    limits = HostLimits(tmp_path)

    for usage in [*limits.memory(), *limits.shared_memory(), *limits.processes()]:
        assert 0 <= usage.used <= usage.limit + 64 * MIB, usage
    assert HOST in {usage.place for usage in limits.memory()}
    assert HOST in {usage.place for usage in limits.processes()}
    assert limits.oom_kills() is not None
