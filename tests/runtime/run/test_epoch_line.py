"""The line of an epoch in a log."""

from __future__ import annotations

import math
from typing import Any

import pytest

from holdfast.runtime.run.progress import EndedEpoch

TOLD: dict[str, Any] = {
    "kind": "epoch", "epoch": 3, "step": 180, "epochs": 10, "seconds": 2.13,
    "metrics": {"accuracy": 0.9, "loss": 0.31}, "validation": {"loss": 0.4}, "verbose": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, "Epoch 3/10 - 2.1 s - loss: 0.3100 - accuracy: 0.9000 - val_loss: 0.4000"),
        ({"validation": None}, "Epoch 3/10 - 2.1 s - loss: 0.3100 - accuracy: 0.9000"),
        ({"metrics": {"loss": 2e-5}, "validation": {}}, "Epoch 3/10 - 2.1 s - loss: 2.0000e-05"),
        ({"epochs": None, "seconds": None, "validation": None, "metrics": None}, "Epoch 3"),
    ],
)
def test_line(change: dict[str, Any], line: str) -> None:
    epoch = EndedEpoch.of(TOLD | change)

    assert epoch is not None
    assert (epoch.line, epoch.verbose) == (line, 2)


@pytest.mark.parametrize("change", [{"epoch": None}, {"step": "last"}])
def test_message_without_an_epoch_has_no_line(change: dict[str, Any]) -> None:
    assert EndedEpoch.of(TOLD | change) is None


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"epochs": "ten"}, "Epoch 3 - 2.1 s"),
        ({"seconds": "soon"}, "Epoch 3/10"),
        ({"seconds": 0}, "Epoch 3/10 - 0.0 s"),
        ({"epoch": 0, "step": 0}, "Epoch 0/10 - 2.1 s"),
        ({"metrics": [0.5]}, "Epoch 3/10 - 2.1 s"),
        ({"metrics": {"loss": "low"}}, "Epoch 3/10 - 2.1 s"),
        ({"validation": {"loss": None}}, "Epoch 3/10 - 2.1 s"),
        ({"metrics": {"loss": math.nan}}, "Epoch 3/10 - 2.1 s - loss: nan"),
        ({"metrics": {"a\nb": 1}}, "Epoch 3/10 - 2.1 s - a b: 1.0000"),
    ],
    ids=[
        "epochs", "seconds", "no time", "first", "metrics", "metric", "validation", "nan", "name",
    ],
)  # fmt: skip
def test_part_that_makes_no_sense_is_left_out(change: dict[str, Any], line: str) -> None:
    epoch = EndedEpoch.of(TOLD | {"metrics": {}, "validation": {}} | change)

    assert epoch is not None
    assert epoch.line == line


@pytest.mark.parametrize(
    ("told", "verbose"),
    [
        ({"verbose": 0}, 0),
        ({"verbose": 2}, 2),
        ({}, 1),
        ({"verbose": None}, 1),
        ({"verbose": "a"}, 1),
    ],
    ids=["silent", "lines", "untold", "null", "text"],
)
def test_epoch_whose_verbose_makes_no_sense_is_shown_as_keras_would(
    told: dict[str, Any], verbose: int
) -> None:
    epoch = EndedEpoch.of({"epoch": 1, "step": 2} | told)

    assert epoch == EndedEpoch(1, 2, verbose=verbose)
