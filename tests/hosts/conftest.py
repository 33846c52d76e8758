"""Hosts for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, why_not
from leftovers import Leftovers
from slurm import SlurmCluster
from slurm import why_not as no_slurm
from workload import Undisturbed, remembering


@pytest.fixture
def cluster(tmp_path: Path, leftovers: Leftovers) -> Iterator[Cluster]:
    """Three hosts that see the folder of the test."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as hosts:
        leftovers.keep(hosts.keeper)
        yield hosts


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory, leftovers: Leftovers) -> Iterator[SlurmCluster]:
    """Slurm with the nodes a, b and c, and its controller on a host of its own."""
    reason = why_not() or no_slurm()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path_factory.mktemp("slurm"), ("login", "a", "b", "c")) as hosts:
        leftovers.keep(hosts.keeper)
        directory = hosts.directory / "slurm"
        directory.mkdir()
        made = SlurmCluster(directory, hosts=hosts)
        made.start()
        yield made
        made.stop()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The digest that a workload must end with: that of one worker on one host."""
    return remembering(tmp_path_factory.mktemp)
