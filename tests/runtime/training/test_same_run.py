"""A run goes on with the model and the samples that it was begun with; what differs is named."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.format.layout import TensorSpec
from holdfast.runtime.training.same_work import model_difference


def _spec(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, dtype, shape)


KERNEL = _spec("weights/dense_2/kernel", 16, 4)
BIAS = _spec("weights/dense_2/bias", 4)


@pytest.mark.parametrize(
    ("saved", "mine", "difference"),
    [
        ([KERNEL, BIAS], [BIAS, KERNEL], None),
        (
            [BIAS, KERNEL, _spec("optimizer/adam/kernel_momentum", 16, 4)],
            [
                _spec("weights/dense_2/bias", 8),
                _spec("weights/dense_2/kernel", 16, 8),
                _spec("optimizer/adam/kernel_momentum", 16, 8),
            ],
            "model: the checkpoint has dense_2/kernel (16, 4), dense_2/bias (4,); "
            "the script has dense_2/kernel (16, 8), dense_2/bias (8,)",
        ),
        (
            [KERNEL, BIAS],
            [KERNEL],
            "model: the checkpoint has dense_2/bias (4,), which the script does not have",
        ),
        (
            [KERNEL],
            [KERNEL, _spec("optimizer/sgd/momentum", 2)],
            "optimizer: the script has sgd/momentum (2,), which the checkpoint does not have",
        ),
        (
            [_spec("cursor/sums", 1)],
            [_spec("cursor/sums", 2)],
            "metrics: the checkpoint has sums (1,); the script has sums (2,)",
        ),
        (
            [BIAS],
            [_spec(BIAS.name, 4, dtype="bfloat16")],
            "model: the checkpoint has dense_2/bias (4,) float32; "
            "the script has dense_2/bias (4,) bfloat16",
        ),
        (
            [_spec(f"weights/dense_{i}/kernel", 2, 2) for i in range(5)],
            [],
            "model: the checkpoint has dense_0/kernel (2, 2), dense_1/kernel (2, 2), "
            "dense_2/kernel (2, 2) and 2 more, which the script does not have",
        ),
        (
            [_spec("plain", 1)],
            [_spec("plain", 2)],
            "state: the checkpoint has plain (1,); the script has plain (2,)",
        ),
    ],
)
def test_difference_is_told_by_its_layers(
    saved: list[TensorSpec], mine: list[TensorSpec], difference: str | None
) -> None:
    assert model_difference(saved, mine) == difference
