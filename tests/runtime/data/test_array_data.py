"""Samples of mapped files and windows of a series, and the digest that tells other samples."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from any_ids import ids_below
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runtime.data.disk_data import NpyData, WindowData, probe_of, probed_ids
from holdfast.runtime.data.samples import ArrayData, SampleIds, Samples
from holdfast.runtime.errors import ProgramError

ROWS = 17

MAPPED = np.random.default_rng(2).normal(size=(ROWS, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("npy")
    np.save(made / "x.npy", MAPPED)
    np.save(made / "fortran.npy", np.asfortranarray(MAPPED))
    np.save(made / "y.npy", np.arange(ROWS))
    np.savez(made / "both.npz", x=MAPPED)
    np.save(made / "objects.npy", np.array([{}], object), allow_pickle=True)
    (made / "empty.npy").write_bytes(b"")
    return made


@given(ids=ids_below(ROWS))
@settings(deadline=None)
def test_any_rows_are_those_of_numpy(folder: Path, ids: Any) -> None:
    data = NpyData({"a": folder / "x.npy", "b": folder / "fortran.npy"}, folder / "y.npy")

    x, y = data.read(ids)  # type: ignore[misc]

    assert len(data) == ROWS
    np.testing.assert_array_equal(x["a"], MAPPED[ids])
    np.testing.assert_array_equal(x["b"], MAPPED[ids])
    np.testing.assert_array_equal(y, ids)


def test_file_stays_on_the_disk(folder: Path) -> None:
    x, _ = NpyData(folder / "x.npy").read(np.arange(4))  # type: ignore[misc]

    owner = x
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner, mmap.mmap)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("both.npz", "archive of several arrays"),
        ("objects.npy", "cannot be mapped as a .npy file"),
        ("empty.npy", "cannot be mapped as a .npy file"),
        ("missing.npy", "cannot be mapped as a .npy file"),
    ],
)
def test_file_that_cannot_be_mapped_is_named(folder: Path, name: str, said: str) -> None:
    with pytest.raises(ProgramError, match=f"{name} .*{said}"):
        NpyData(folder / name)


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


MOST = 64

X = np.arange(24, dtype=np.int32).reshape(4, 6)


class Repeated:
    """Any number of samples, all of them zero."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def read(self, ids: SampleIds) -> Samples:
        return np.zeros((len(ids), 2)), None


@given(st.integers(1, 10**12))
def test_probed_samples_are_few_with_the_first_and_the_last(samples: int) -> None:
    ids = probed_ids(samples)

    assert ids[0] == 0
    assert ids[-1] == samples - 1
    assert len(ids) == min(samples, MOST)
    assert (np.diff(ids) > 0).all()


def texts(*found: str) -> Any:
    return np.array(found, object)


SAME = {
    "array": lambda: ArrayData(X.copy(), X[:, 0]),
    "dict": lambda: ArrayData({"a": X.copy(), "b": X + 1}),
    "texts": lambda: ArrayData(texts("one", "".join(["t", "w", "o"]))),
    "weights": lambda: ArrayData(X.copy(), X[:, 0], X[:, 1]),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_data_have_one_digest(name: str) -> None:
    assert probe_of(SAME[name]()) == probe_of(SAME[name]())


OTHERS: dict[str, tuple[Any, Any]] = {
    "value": (ArrayData(X), ArrayData(X + (X == 23))),
    "type": (ArrayData(X * 0), ArrayData((X * 0).astype(np.float32))),
    "shape": (ArrayData(X), ArrayData(X.reshape(4, 2, 3))),
    "name": (ArrayData({"a": X}), ArrayData({"b": X})),
    "order": (ArrayData(X), ArrayData(X[::-1])),
    "part": (ArrayData(X, X), ArrayData(X)),
    "place": (ArrayData((X, X + 1)), ArrayData(X, X + 1)),
    "texts": (ArrayData(texts("one", "two")), ArrayData(texts("one", "too"))),
    "number": (Repeated(500), Repeated(501)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_data_have_another_digest(name: str) -> None:
    one, other = OTHERS[name]

    assert probe_of(one) != probe_of(other)
