"""Code that TensorFlow generates leaves no file, and Python still finds its lines."""

from __future__ import annotations

import inspect
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow

LOADER = "tensorflow.python.autograph.pyct.loader"


def test_function_is_translated_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    from holdfast.runtime.fit.generated_code import keep_in_memory

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
