"""Which modules warm processes import, by what a script imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.supervisor.job_setup import useful_preload

ALWAYS = (
    *("numpy", "xxhash", "mpi4py", "h5py"),
    *("holdfast.runtime.fit.script_setup", "holdfast.runtime.training.trainer"),
)
KERAS = ("tensorflow", "keras")
FOR_KERAS = ("holdfast.runtime.fit.keras_fit",)
WANTED = ("tensorflow", "keras", "sklearn")


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("", ()),
        ("import os", ()),
        ("import keras", (*KERAS, *FOR_KERAS)),
        ("import tensorflow as tf", (*KERAS, *FOR_KERAS)),
        ("from keras import layers", (*KERAS, *FOR_KERAS)),
        ("import keras.layers, sklearn.datasets", (*KERAS, "sklearn", *FOR_KERAS)),
        ("def late():\n    from sklearn.datasets import load_digits", ("sklearn",)),
        ("try:\n    import sklearn\nexcept ImportError:\n    pass", ("sklearn",)),
        ("from . import keras", ()),
        ("from .keras import layers", ()),
        ("keras = 'import keras'", ()),
        ("import numpy", ()),
    ],
)
def test_what_a_script_imports_is_warm(tmp_path: Path, source: str, more: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    script.write_text(source)

    assert useful_preload(WANTED, script) == (*ALWAYS, *more)


def test_what_nobody_wants_is_not_imported(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import keras, sklearn")

    assert useful_preload(("sklearn",), script) == (*ALWAYS, "sklearn")
    assert useful_preload((), script) == ALWAYS


@pytest.mark.parametrize("source", [b"import keras\ndef (:", b"\x00import keras", b"\xff\xfe\xff"])
def test_script_that_cannot_be_parsed_imports_nothing(tmp_path: Path, source: bytes) -> None:
    script = tmp_path / "train.py"
    script.write_bytes(source)

    assert useful_preload(WANTED, script) == ALWAYS


def test_script_that_is_not_there_imports_nothing(tmp_path: Path) -> None:
    assert useful_preload(WANTED, tmp_path / "nowhere.py") == ALWAYS
