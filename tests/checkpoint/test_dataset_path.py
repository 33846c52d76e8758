"""Different names never share a path, and no path means anything special to HDF5."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.shard import dataset_paths

names = st.sets(st.text("a./%\0é 2E5", max_size=8), max_size=12)


@given(names)
def test_paths_are_distinct_and_no_dataset_is_a_group(found: set[str]) -> None:
    paths = dataset_paths(found)

    distinct = set(paths.values())
    groups = {path[:depth] for path in distinct for depth in range(1, len(path))}
    assert len(distinct) == len(found)
    assert not distinct & groups


@given(names)
def test_components_are_plain(found: set[str]) -> None:
    for path in dataset_paths(found).values():
        for component in path:
            assert component not in ("", ".", "..")
            assert not set(component) & {"/", "\0"}


def test_usual_names_are_left_alone() -> None:
    paths = dataset_paths(["dense/kernel", "optimizer/dense kernel/m", "ümlaut"])

    assert ["/".join(path) for path in paths.values()] == [*paths]


def test_awkward_names_are_encoded_as_documented() -> None:
    paths = dataset_paths(["a", "a/b", "../x/./y", "//", "50%"])

    assert ["/".join(path) for path in paths.values()] == [
        "a%",
        "a/b",
        "%2E%2E/x/%2E/y",
        "%/%/%",
        "50%25",
    ]
