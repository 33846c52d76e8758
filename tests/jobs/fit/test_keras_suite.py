"""A sample of the Keras suite: ordinary scripts end with the same bytes, and as under plain Keras.

`ci/keras` runs all of them.  In `./ci/test` others show the same: test_stages.py and
test_callbacks.py compare scripts that all workers have died in, test_stopped_epoch.py
a script with plain Keras, and test_global_loss.py masks with it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from suite_run import run_script
from suite_table import SUITE

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow, pytest.mark.extended]

SAMPLE = ("lstm_masks", "tagger", "dict_strings", "early_stopping")
"""Masks and the loss of a whole batch, in two sizes; a pipeline with strings; a callback."""


@pytest.mark.parametrize("name", SAMPLE)
def test_script_ends_alike_alone_on_one_worker_and_after_all_have_died(
    name: str, tmp_path: Path
) -> None:
    outcome = run_script(SUITE[name], tmp_path)

    assert outcome.complaints == []
