"""What holds for all tests: nothing is left behind, signals, and how many examples there are.

Property tests look at few examples as unit tests, and at more when there is time.
``pytest -m hypothesis --hypothesis-profile long`` is the long form, a part of ``ci/test``.  The
examples are the same ones every time, so a failure needs no seed to come back.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from holdfast.runtime.run import files

pytest_plugins = ("leftovers", "run_record")

# A machine that is busy with other work makes no example slow by its own fault.
_SAME_EVERY_TIME = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)

settings.register_profile("unit", _SAME_EVERY_TIME, max_examples=40)
settings.register_profile("long", _SAME_EVERY_TIME, max_examples=300)
settings.load_profile("unit")

# A shell that starts the tests in the background, or nohup, has jobs ignore these two, and a
# job that ignores a signal from the start goes on ignoring it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


_LONGEST_FIRST = ("mpi", "tensorflow", "process")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Hand out the files with whole jobs first, so that all processes end at the same time."""
    if not hasattr(config, "workerinput"):
        return
    ranks: dict[Path, int] = {}
    for item in items:
        markers = {marker.name for marker in item.iter_markers()}
        found = [rank for rank, name in enumerate(_LONGEST_FIRST) if name in markers]
        rank = min(found, default=len(_LONGEST_FIRST))
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    """Let a test wait for what it has written: another program may keep the disk for seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "WAITS_S", 60.0)
        yield


@pytest.fixture(autouse=True)
def tensorflow_of_one_thread(request: pytest.FixtureRequest) -> None:
    """Let a test that uses TensorFlow in this process find the threads that replicas want.

    They are fixed at the first use, and tests of several files share a process.
    """
    markers = {marker.name for marker in request.node.iter_markers()}
    if "tensorflow" in markers and "mpi" not in markers:
        _fix_threads()


@functools.cache
def _fix_threads() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    pytest.importorskip("tensorflow")
    from holdfast.runtime.model.graphs import set_numerics

    set_numerics(1, 7, deterministic=False)
