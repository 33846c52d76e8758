"""Windows of a series are those of a plain slice, and of Keras's helper."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.data.array_data import WindowData
from holdfast.runtime.errors import ProgramError

SERIES = np.random.default_rng(4).normal(size=(40, 2)).astype(np.float32)
TARGETS = np.arange(40)
BORDERS = st.none() | st.integers(0, 15)


@given(
    length=st.integers(1, 5),
    stride=st.integers(1, 4),
    rate=st.integers(1, 3),
    start=BORDERS,
    end=st.none() | st.integers(30, 40),
)
def test_each_window_is_a_slice(
    length: int, stride: int, rate: int, start: int | None, end: int | None
) -> None:
    data = WindowData(
        SERIES,
        TARGETS,
        length,
        sequence_stride=stride,
        sampling_rate=rate,
        start_index=start,
        end_index=end,
    )
    used, span = SERIES[start:end], (length - 1) * rate + 1
    begins = range(0, len(used) - span + 1, stride)

    x, y = data.read(np.arange(len(data)))  # type: ignore[misc]

    assert len(data) == len(begins)
    np.testing.assert_array_equal(x, [used[b : b + span : rate] for b in begins])
    np.testing.assert_array_equal(y, [b + (start or 0) for b in begins])


@given(order=st.permutations(range(10)))
def test_windows_come_in_the_order_of_their_ids(order: list[int]) -> None:
    data = WindowData(SERIES, None, 3)

    x, y = data.read(np.array(order))  # type: ignore[misc]

    assert y is None
    np.testing.assert_array_equal(x[:, 0], SERIES[order])


@pytest.mark.tensorflow
@pytest.mark.parametrize(("stride", "rate", "targets"), [(1, 1, 37), (3, 2, 40), (2, 1, 9)])
def test_windows_are_those_of_keras(stride: int, rate: int, targets: int) -> None:
    import keras

    steps: dict[str, Any] = {"sequence_stride": stride, "sampling_rate": rate}
    ours = WindowData(SERIES, TARGETS[:targets], 4, **steps)
    theirs = list(
        keras.utils.timeseries_dataset_from_array(
            SERIES, TARGETS[:targets], 4, batch_size=1000, **steps
        )
    )

    x, y = ours.read(np.arange(len(ours)))  # type: ignore[misc]

    np.testing.assert_array_equal(x, theirs[0][0])
    np.testing.assert_array_equal(y, theirs[0][1])


def test_target_may_follow_its_window() -> None:
    data = WindowData(SERIES[:-4], SERIES[4:, 0], 4)

    np.testing.assert_array_equal(data.read(np.array([5]))[1], SERIES[9:10, 0])


def test_fingerprint_tells_another_series() -> None:
    same = WindowData(SERIES, TARGETS, 3)

    assert same.fingerprint() == WindowData(SERIES.copy(), TARGETS, 3).fingerprint()
    assert same.fingerprint() != WindowData(SERIES + 1, TARGETS, 3).fingerprint()
    assert same.fingerprint() != WindowData(SERIES, TARGETS, 3, sampling_rate=2).fingerprint()


@pytest.mark.parametrize("number", [-1, 38])
def test_window_that_is_not_there_is_an_error(number: int) -> None:
    with pytest.raises(IndexError, match="there are 38 windows"):
        WindowData(SERIES, None, 3).read(np.array([number]))


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ProgramError, match="sampling_rate=0"):
        WindowData(SERIES, None, 3, sampling_rate=0)
    with pytest.raises(ProgramError, match="40 moments hold no window of 50 entries"):
        WindowData(SERIES, None, 50)
