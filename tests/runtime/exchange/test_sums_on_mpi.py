"""Sums over hosts on real MPI: the bytes of one rank, whoever dies, and shared memory at the end.

All ranks are on this machine, and are told which hosts they live on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from extended import extended
from mpi_jobs import OVER_TCP, play_on_mpi

PROGRAM = "mpi_sums.py"
BY_PIECES, GATHERED = "TRAIN by pieces right of", "EVALUATE without pieces right of"
IN_MEMORY = "TRAIN without pieces right of"


def undisturbed(large: str, ranks: int) -> list[str]:
    """Return what a rank writes that sees three rounds without a death, and leaves."""
    return [f"{large} {ranks}", f"{GATHERED} {ranks}"] * 3 + ["left"]


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("hosts", "mca"),
    [
        extended("ab", OVER_TCP),
        extended("aabb", OVER_TCP),
        ("aab", OVER_TCP),
        ("abca", OVER_TCP),
        ("aabb", ()),
    ],
    ids=["ab", "aabb", "aab", "abca", "aabb by sm"],
)
def test_sums_over_hosts_have_the_bytes_of_one_rank(
    tmp_path: Path, hosts: str, mca: Sequence[tuple[str, str]]
) -> None:
    told = play_on_mpi(tmp_path, len(hosts), PROGRAM, hosts, mca=mca)

    assert told == [undisturbed(BY_PIECES, len(hosts))] * len(hosts)


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("site", "victim"),
    [
        extended("before", 0),
        ("posted", 3),
        ("flight", 0),
        extended("flight", 3),
        ("vote", 3),
        extended("after", 0),
    ],
)
def test_survivors_of_a_death_in_a_sum_go_on_with_the_same_bytes(
    tmp_path: Path, site: str, victim: int
) -> None:
    told = play_on_mpi(tmp_path, 4, PROGRAM, "aabb", site, str(victim), mca=OVER_TCP)

    dead = told.pop(victim)
    assert dead == undisturbed(BY_PIECES, 4)[: len(dead)]
    for lines in told:
        assert lines[-7:] == undisturbed(BY_PIECES, 3)
        assert not [line for line in lines if "wrong" in line]


@pytest.mark.mpi
@pytest.mark.parametrize("site", ["flight", "vote"])
def test_world_that_is_left_on_one_host_sums_in_its_memory(tmp_path: Path, site: str) -> None:
    told = play_on_mpi(tmp_path, 3, PROGRAM, "aba", site, "1", mca=OVER_TCP)

    told.pop(1)
    assert [lines[-7:] for lines in told] == [undisturbed(IN_MEMORY, 2)] * 2
