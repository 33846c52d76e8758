"""Caches of datasets: each worker fills its own, and a whole one gets the name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.fit.directories import Caches

tf = pytest.importorskip("tensorflow")

pytestmark = pytest.mark.tensorflow


def caches(worker: int, *living: int) -> Caches:
    return Caches(tf.io.gfile, "a1", worker, lambda: living or (worker,))


def fill(place: str, batches: int | None = None) -> Any:
    """Read the cache at a place through, or only some batches, and return the pass."""
    elements = iter(tf.data.Dataset.range(4).cache(place))
    for _ in range(5 if batches is None else batches):
        next(elements, None)
    return elements


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


WHOLE = ["c.data-00000-of-00001", "c.index"]


def test_two_workers_fill_caches_at_once_and_one_gets_the_name(tmp_path: Path) -> None:
    first, second = caches(0, 0, 1), caches(1, 0, 1)
    places = [one.place_of(tmp_path / "c") for one in (first, second)]
    looking = fill(places[1], 1)
    fill(places[0])
    assert len(set(places)) == 2
    del looking

    first.give_names()
    second.give_names()

    assert names(tmp_path) == WHOLE
    assert caches(2).place_of(f"{tmp_path}/c") == f"{tmp_path}/c"
    assert list(tf.data.Dataset.range(0).cache(f"{tmp_path}/c").as_numpy_iterator()) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "half"])
def test_cache_of_a_dead_worker_is_taken_over_if_it_is_whole(
    *, tmp_path: Path, is_whole: bool
) -> None:
    dead = caches(1).place_of(tmp_path / "c")
    passing = fill(dead, None if is_whole else 1)
    (tmp_path / "c.a1-12_0.lockfile").touch()  # of a living worker, whose number begins alike

    place = caches(2, 2, 12).place_of(tmp_path / "c")

    assert place == str(tmp_path / ("c" if is_whole else "c.a1-2"))
    assert names(tmp_path) == ["c.a1-12_0.lockfile", *(WHOLE if is_whole else [])]
    del passing


def test_caches_in_memory_and_of_other_runs_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "c.b2-0_0.lockfile").touch()
    mine = caches(0)

    mine.place_of(tmp_path / "c")
    mine.give_names()

    assert names(tmp_path) == ["c.b2-0_0.lockfile"]
    assert mine.place_of(tmp_path / "no folder" / "c").endswith("no folder/c.a1-0")
