"""Code that TensorFlow generates leaves no file, and Python still finds its lines."""

from __future__ import annotations

import inspect
import linecache
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.fit.script_setup import keep_in_memory

LOADER = "tensorflow.python.autograph.pyct.loader"


@pytest.mark.tensorflow
def test_function_is_translated_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    loader: Any = sys.modules[LOADER]
    monkeypatch.setattr(loader, "load_source", loader.load_source)
    keep_in_memory()
    before = set(sys.modules)

    @tf.function
    def absolute(x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            return x
        if x.shape.rank == 0:
            return -x
        raise ValueError("of one number only")

    assert float(absolute(tf.constant(-2.0))) == 2.0
    made = [name for name in set(sys.modules) - before if name.startswith("__autograph_generated")]
    assert made
    assert list(tmp_path.iterdir()) == []
    assert "def tf__absolute" in inspect.getsource(sys.modules[made[0]])
    with pytest.raises(ValueError, match=r"(?s)in user code.*absolute.*of one number only"):
        absolute(tf.constant([1.0, -2.0]))


def test_lines_of_a_file_that_is_removed_stay_where_python_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated = tmp_path / "generated.py"

    def load_source(source: str, *, deletes: bool) -> Any:
        generated.write_text(source)
        return SimpleNamespace(deletes=deletes), str(generated)

    loader: Any = SimpleNamespace(load_source=load_source)
    monkeypatch.setitem(sys.modules, LOADER, loader)
    monkeypatch.setattr(linecache, "cache", {})
    keep_in_memory()

    module, path = loader.load_source("first = 1\nsecond = 2\n", deletes=True)
    linecache.checkcache()

    assert (module.deletes, path) == (True, str(generated))
    assert not generated.exists()
    lines = [linecache.getline(path, number) for number in (1, 2, 3)]
    assert lines == ["first = 1\n", "second = 2\n", ""]


def test_another_release_of_tensorflow_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, LOADER, raising=False)

    keep_in_memory()

    assert LOADER not in sys.modules
