"""A sample of the Keras suite: ordinary scripts end with the same bytes, and as under plain Keras.

`ci/keras` runs all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from extended import shortened
from suite_run import run_script
from suite_table import SUITE

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SAMPLE = ("lstm_masks", "tagger", "dict_strings", "early_stopping")
"""Masks and the loss of a whole batch, in two sizes; a pipeline with strings; a callback."""
SHORT = ("tagger",)
"""The only whole job of `./ci/test` that is compared with plain Keras.

Callbacks that end a training: test_callbacks.py.  Death of all readers of a pipeline:
test_pipelines.py.  Strings: test_models.py.
"""


@pytest.mark.extended  # ci/keras runs them all
@pytest.mark.parametrize("name", shortened(SAMPLE, here=SHORT))
def test_script_ends_alike_alone_on_one_worker_and_after_all_have_died(
    name: str, tmp_path: Path
) -> None:
    outcome = run_script(SUITE[name], tmp_path)

    assert outcome.complaints == []
