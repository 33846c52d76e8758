"""Samples in an HDF5 file: any of them, in any order, are those that NumPy has in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from any_ids import ids_below
from hypothesis import HealthCheck, given, settings

from holdfast.runtime.data.disk_data import HDF5Data
from holdfast.runtime.errors import ProgramError

ROWS = 23
RANDOM = np.random.default_rng(11)
IMAGES = RANDOM.integers(0, 255, (ROWS, 4, 3), dtype=np.uint8)
CLASSES = RANDOM.integers(5, size=ROWS)
TEXTS = [f"text {number}" * (number % 4) for number in range(ROWS)]
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (4, 4, 3)},
    "compressed": {"chunks": (5, 2, 3), "compression": "gzip", "shuffle": True},
    "one row a chunk": {"chunks": (1, 4, 3)},
}


@pytest.fixture(scope="module", params=LAYOUTS)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("hdf5") / "train.h5"
    with h5py.File(made, "w") as file:
        file.create_dataset("images", data=IMAGES, **LAYOUTS[request.param])
        file.create_dataset("labels/class", data=CLASSES)
        file.create_dataset("labels/half", data=CLASSES.astype(np.float16))
        file.create_dataset("mask", data=CLASSES > 2)
        file.create_dataset("text", data=TEXTS)
        file.create_dataset("short", data=CLASSES[:-1])
        file.create_dataset("scalar", data=3.0)
        file.create_dataset("pairs", data=np.zeros(ROWS, [("a", "i4"), ("b", "f4")]))
        lists = file.create_dataset("lists", ROWS, h5py.vlen_dtype(np.int32))
        lists[0] = [1, 2]
    return made


@given(ids=ids_below(ROWS))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_are_those_of_numpy(path: Path, ids: Any) -> None:
    data = HDF5Data(path, {"i": "images", "t": "text"}, ("labels/class", "mask"), "labels/half")

    x, y, weights = data.read(ids)  # type: ignore[misc]

    np.testing.assert_array_equal(x["i"], IMAGES[ids])
    assert [text.decode() for text in x["t"]] == [TEXTS[number] for number in ids]
    np.testing.assert_array_equal(y[0], CLASSES[ids])
    np.testing.assert_array_equal(y[1], CLASSES[ids] > 2)
    np.testing.assert_array_equal(weights, CLASSES[ids].astype(np.float16))
    assert (x["i"].dtype, y[1].dtype, weights.dtype) == (np.uint8, np.bool_, np.float16)


@pytest.mark.parametrize("outside", [-1, ROWS])
def test_row_that_is_not_there_is_an_error(path: Path, outside: int) -> None:
    with pytest.raises(IndexError, match=f"has {ROWS} rows"):
        HDF5Data(path, "images").read(np.array([0, outside]))


def test_length_and_absent_targets(path: Path) -> None:
    data = HDF5Data(path, "images")

    assert len(data) == ROWS
    assert data.read(np.arange(2))[1] is None


def test_fingerprint_tells_other_rows(path: Path, tmp_path: Path) -> None:
    same, other = HDF5Data(path, "images", "labels/class"), tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["images"] = IMAGES
        file["labels/class"] = CLASSES[::-1]

    assert same.fingerprint() == HDF5Data(path, "images", "labels/class").fingerprint()
    assert same.fingerprint() != HDF5Data(other, "images", "labels/class").fingerprint()


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        ("imgs", None, "has no dataset 'imgs': it has images, labels/class"),
        ("labels", None, "has no dataset 'labels'"),
        ("scalar", None, r"'scalar' .* has the shape \(\) and holds no samples"),
        ("pairs", None, "'pairs' .* which is no number and no text"),
        ("lists", None, "'lists' .* which is no number and no text"),
        ("images", "short", "x has 23 samples but y has 22"),
    ],
)
def test_dataset_that_cannot_be_read_is_named(path: Path, x: str, y: Any, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        HDF5Data(path, x, y)


def test_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.h5").write_text("no HDF5")

    for name in ("text.h5", "missing.h5"):
        with pytest.raises(ProgramError, match=f"{name} cannot be opened as an HDF5 file"):
            HDF5Data(tmp_path / name, "x")


def test_damaged_chunk_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.h5"
    with h5py.File(damaged, "w") as file:
        made = file.create_dataset("x", data=IMAGES, chunks=(4, 4, 3), fletcher32=True)
        file.flush()
        place = made.id.get_chunk_info(2).byte_offset
    content = bytearray(damaged.read_bytes())
    content[place + 1] ^= 1
    damaged.write_bytes(content)
    data = HDF5Data(damaged, "x")

    np.testing.assert_array_equal(data.read(np.arange(8))[0], IMAGES[:8])
    with pytest.raises(ProgramError, match=r"dataset '/x' of .*damaged.h5 cannot be read"):
        data.read(np.array([9]))
