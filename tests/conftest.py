"""What holds for all tests: nothing is left behind, signals, and how many examples there are.

Property tests look at few examples as unit tests, and at more when there is time.
``pytest -m hypothesis --hypothesis-profile long`` is the long form, a part of ``ci/extended``.  The
examples are the same ones every time, so a failure needs no seed to come back.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression
from hypothesis import HealthCheck, settings

from holdfast.runtime.run import files
from holdfast.runtime.run.numerics import Numerics

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


_ALL_WITH_TENSORFLOW = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.tensorflow", re.MULTILINE)
_IN_TEXT = {"extended": r"\b(?:extended|shortened)\b", "hypothesis": r"\bhypothesis\b"}
"""What a file has in its text if its tests have these markers; it names others as `mark.NAME`."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a file out whose tests are all deselected: its import takes time, TensorFlow's most."""
    expression = config.option.markexpr
    if collection_path.suffix != ".py" or not expression:
        return None
    text = collection_path.read_text(encoding="utf-8")
    markers = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}
    may_have = {
        name for name in markers if re.search(_IN_TEXT.get(name, rf"\bmark\.{name}\b"), text)
    }
    all_have = {"tensorflow"} if _ALL_WITH_TENSORFLOW.search(text) else set()
    return not _selects_any(expression, frozenset(may_have), frozenset(all_have)) or None


@functools.cache
def _selects_any(expression: str, may_have: frozenset[str], all_have: frozenset[str]) -> bool:
    """Return whether ``-m`` selects tests with some of the markers, of which each has a few."""
    wanted = Expression.compile(expression)
    others = sorted(may_have - all_have)
    return any(
        wanted.evaluate({*all_have, *itertools.compress(others, chosen)}.__contains__)
        for chosen in itertools.product((True, False), repeat=len(others))
    )


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

    set_numerics(Numerics.here(threads=1), 7)
