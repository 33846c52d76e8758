"""Samples in mapped ``.npy`` files."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from any_ids import ids_below
from hypothesis import given, settings

from holdfast.runtime.data.array_data import NpyData
from holdfast.runtime.errors import ProgramError

ROWS = 17
X = np.random.default_rng(2).normal(size=(ROWS, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("npy")
    np.save(made / "x.npy", X)
    np.save(made / "fortran.npy", np.asfortranarray(X))
    np.save(made / "y.npy", np.arange(ROWS))
    np.savez(made / "both.npz", x=X)
    np.save(made / "objects.npy", np.array([{}], object), allow_pickle=True)
    (made / "empty.npy").write_bytes(b"")
    return made


@given(ids=ids_below(ROWS))
@settings(deadline=None)
def test_any_rows_are_those_of_numpy(folder: Path, ids: Any) -> None:
    data = NpyData({"a": folder / "x.npy", "b": folder / "fortran.npy"}, folder / "y.npy")

    x, y = data.read(ids)  # type: ignore[misc]

    assert len(data) == ROWS
    np.testing.assert_array_equal(x["a"], X[ids])
    np.testing.assert_array_equal(x["b"], X[ids])
    np.testing.assert_array_equal(y, ids)


def test_file_stays_on_the_disk(folder: Path) -> None:
    x, _ = NpyData(folder / "x.npy").read(np.arange(4))  # type: ignore[misc]

    owner = x
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner, mmap.mmap)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("both.npz", "archive of several arrays"),
        ("objects.npy", "cannot be mapped as a .npy file"),
        ("empty.npy", "cannot be mapped as a .npy file"),
        ("missing.npy", "cannot be mapped as a .npy file"),
    ],
)
def test_file_that_cannot_be_mapped_is_named(folder: Path, name: str, said: str) -> None:
    with pytest.raises(ProgramError, match=f"{name} .*{said}"):
        NpyData(folder / name)
