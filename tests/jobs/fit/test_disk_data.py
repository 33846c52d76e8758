"""Data of each kind on the disk: a death and a relaunch within an epoch change no byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from holdfast.testing import run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "pipelines" / "from_disk.py"
OPTIONS = ("--threads", "1", "--save-every", "3", "--heartbeat-timeout", "30")
ROWS = 50
RANDOM = np.random.default_rng(3)
X = RANDOM.normal(size=(ROWS, 6)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    with h5py.File(made / "data.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(7, 6), compression="gzip")
        file["labels/y"] = Y
    np.save(made / "x.npy", X[::-1])
    np.save(made / "y.npy", Y[::-1])
    np.save(made / "series.npy", X.reshape(-1)[:60])
    for part in range(2):
        _write_records(made / f"{part}.tfrecord", range(part, ROWS, 2))
    for number in range(20):
        place = made / "images" / ("up", "down")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.bmp").write_bytes(_bitmap(5, 4 + number % 3))
    return made


@pytest.mark.extended
def test_death_and_relaunch_change_no_byte(folder: Path, tmp_path: Path) -> None:
    """The first worker dies within the second epoch of HDF5, all others within that of records.

    Images and records are pipelines, of which test_pipelines.py has more.
    """
    same: dict[str, Any] = {"argv": [str(folder)], "microbatches": 3, "options": OPTIONS}
    alone = run_job(SCRIPT, run_dir=tmp_path / "one", workers=1, **same)
    struck = run_job(
        SCRIPT,
        run_dir=tmp_path / "three",
        workers=3,
        faults=("kill worker=0 step=5", "kill worker=1 step=17", "kill worker=2 step=17"),
        **same,
    )

    assert (alone.exit_code, struck.exit_code) == (0, 0), struck.stderr
    assert struck.sha256 == alone.sha256
    assert len(struck.events("failure")) == 3
    histories, again = (_histories(job.stdout) for job in (alone, struck))
    assert again == histories
    assert [len(history["loss"]) for history in histories] == [2, 1, 1, 2, 2]


def _histories(stdout: str) -> list[dict[str, list[float]]]:
    found: list[dict[str, list[float]]] = json.loads(stdout[stdout.index('[{"') :])
    return found


def _write_records(path: Path, rows: range) -> None:
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            parts = {"x": X[row], "y": Y[row : row + 1]}
            feature = {
                name: tf.train.Feature(float_list=tf.train.FloatList(value=part))
                for name, part in parts.items()
            }
            example = tf.train.Example(features=tf.train.Features(feature=feature))
            writer.write(example.SerializeToString())


def _bitmap(height: int, width: int) -> bytes:
    """Return an image of random colours as a file, without a library."""
    row = -(-width * 3 // 4) * 4
    pixels = RANDOM.integers(255, size=height * row, dtype=np.uint8).tobytes()
    head = struct.pack("<2sIII", b"BM", 54 + len(pixels), 0, 54)
    return head + struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0) + pixels
