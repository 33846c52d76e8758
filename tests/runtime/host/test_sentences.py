"""The words that people read of limits, and which limits are too small for a job."""

from __future__ import annotations

import pytest

from holdfast.runtime.host import host_watch
from holdfast.runtime.host.host_watch import find_too_small, needed
from holdfast.runtime.host.memory_forecast import Growth
from holdfast.runtime.system.usage import Resource, Usage

GIB, MIB = 1 << 30, 1 << 20
MEMORY = Usage(Resource.MEMORY, "the cgroup /job", 10_952_166_605, 12 * GIB)
FILES = Usage(Resource.FILES, "worker 3", 980, 1024)


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (0, "0 KiB"),
        (3 * 1024, "3 KiB"),
        (MIB, "1.0 MiB"),
        (120.4 * MIB, "120 MiB"),
        (12.75 * GIB, "12.8 GiB"),
        (300 * GIB, "300 GiB"),
    ],
)
def test_bytes_have_a_fitting_unit(amount: float, words: str) -> None:
    assert host_watch.describe_amount(Resource.MEMORY, amount) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 seconds"), (20.4, "20 seconds"), (99, "99 seconds"), (900, "15 minutes")],
)
def test_time_is_rounded(seconds: float, words: str) -> None:
    assert host_watch.describe_time(seconds) == words


def test_growth_is_told_with_use_limit_rate_time_and_worker() -> None:
    text = host_watch.describe_growth(MEMORY, Growth(2 * MIB, 905.0), (2, 8 * GIB))

    assert text == (
        "memory of the cgroup /job: 10.2 GiB of 12.0 GiB in use, 120 MiB more each minute; the "
        "limit is met in about 15 minutes; worker 2 has grown most, to 8.0 GiB; asking for a "
        "checkpoint"
    )


def test_growth_of_nobody_names_nobody() -> None:
    assert "worker" not in host_watch.describe_growth(MEMORY, Growth(1.0, 1.0), None)


def test_full_use_is_told_with_a_remedy() -> None:
    assert host_watch.describe_fullness(FILES) == (
        "open files of worker 3: 980 of 1024 in use; at the limit workers die; use fewer workers, "
        "or raise the limit (ulimit -n)"
    )


@pytest.mark.parametrize(
    ("limit", "resident", "is_certain", "words"),
    [
        (
            MEMORY,
            8 * GIB,
            True,
            "out of memory: killed by the kernel's OOM killer, it had 8.0 GiB resident, the cgroup "
            "/job has 12.0 GiB",
        ),
        (None, None, False, "out of memory: probably killed by the kernel's OOM killer"),
    ],
)
def test_death_by_the_oom_killer_has_figures(
    limit: Usage | None, resident: int | None, words: str, *, is_certain: bool
) -> None:
    assert host_watch.describe_oom_kill(limit, resident, is_certain=is_certain) == words


@pytest.mark.parametrize("resource", [Resource.SHARED_MEMORY, Resource.PROCESSES, Resource.FILES])
def test_limit_is_too_small_just_below_the_need(resource: Resource) -> None:
    need = needed(resource, 8)
    enough = Usage(resource, "here", 5, 5 + need)
    too_small = Usage(resource, "there", 5, 4 + need)

    assert find_too_small([enough, too_small], 8) == [too_small]
    assert needed(resource, 9) > need


def test_memory_is_not_judged_before_a_job_begins() -> None:
    assert find_too_small([Usage(Resource.MEMORY, "the host", 9, 10)], 100) == []


def test_need_of_things_that_are_counted_has_no_unit() -> None:
    text = host_watch.describe_need(Usage(Resource.FILES, "this host's agent", 9, 32), 1)

    assert text.startswith("1 worker needs about 49 open files, and 23 of 32 are free (this host's")


def test_small_limit_is_told_with_need_and_remedy() -> None:
    usage = Usage(Resource.SHARED_MEMORY, "/dev/shm", 32 * MIB, 64 * MIB)

    assert host_watch.describe_need(usage, 4) == (
        "4 workers need about 64.0 MiB of shared memory, and 32.0 MiB of 64.0 MiB are free "
        "(/dev/shm): use fewer workers, or make room: a larger /dev/shm (docker: --shm-size), or "
        "another TMPDIR"
    )
