"""Names say what they mean, and nothing else is taken for one."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.names import (
    StagingName,
    is_removed,
    removed_name,
    shard_name,
    step_name,
    step_of,
)


@pytest.mark.parametrize("step", [0, 1, 123456789012, 10**13])
def test_step_is_read_back_from_its_name(step: int) -> None:
    assert step_of(step_name(step)) == step


@pytest.mark.parametrize(
    "name",
    [
        "step-12",
        "step-0000000000012",
        "step-00000000001x",
        "STEP-000000000012",
        "step-000000000012 ",
        "step-٠٠٠٠٠٠٠٠٠٠١٢",
        "step--00000000012",
        ".tmp-000000000012-g1-a1",
    ],
)
def test_other_names_are_no_steps(name: str) -> None:
    assert step_of(name) is None


def test_staging_is_read_back_from_its_name() -> None:
    name = StagingName(12, 7, 3)

    assert str(name) == ".tmp-000000000012-g7-a3"
    assert StagingName.parse(str(name)) == name
    assert name.bad_name == ".bad-000000000012-g7-a3"


@pytest.mark.parametrize("name", ["step-000000000012", ".tmp-12-g7-a3", ".tmp-000000000012-g-a3"])
def test_other_names_are_no_staging(name: str) -> None:
    assert StagingName.parse(name) is None


def test_removed_steps_are_known() -> None:
    assert is_removed(removed_name(12))
    assert is_removed(StagingName(12, 7, 3).removed_name)
    assert not is_removed(step_name(12))


def test_shards_count_from_zero() -> None:
    assert shard_name(3, 16) == "shard-00003-of-00016.h5"
