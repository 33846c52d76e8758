"""The line of an epoch in a log."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.runtime.progress.epoch_line import EndedEpoch

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
