"""Hosts for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, why_not
from leftovers import Leftovers


@pytest.fixture
def cluster(tmp_path: Path, leftovers: Leftovers) -> Iterator[Cluster]:
    """Three hosts that see the folder of the test."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with Cluster(tmp_path) as hosts:
        leftovers.keep(hosts.keeper)
        yield hosts
