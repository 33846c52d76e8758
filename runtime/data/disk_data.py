"""Samples on the disk, read by number: mapped files, windows of a series, datasets of HDF5.

A digest of some samples tells whether two workers, or two launches, read the same.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.tensor import Digest
from holdfast.runtime.data.samples import (
    ArrayData,
    Data,
    SampleIds,
    Samples,
    count_samples,
    plain_bytes,
)
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.replica import Nest, map_leaves, named_leaves

_PROBED_SAMPLES = 64
"""Few, because each may lie in a chunk or a file of its own."""


def probed_ids(samples: int) -> SampleIds:
    """Return the numbers of some samples, evenly spaced, with the first and the last one."""
    return np.unique(np.linspace(0, samples - 1, _PROBED_SAMPLES).astype(np.int64))


def probe_of(data: Data) -> str:
    """Return a digest of the names, shapes, dtypes and bytes of some samples."""
    digest = Digest()
    digest.update(f"{len(data)}\n".encode())
    for name, part in zip("xyw", data.read(probed_ids(len(data))), strict=False):
        for path, leaf in named_leaves(part, name):
            array = np.asarray(leaf)
            digest.update(f"{path} {array.shape} {array.dtype}\n".encode())
            digest.update(plain_bytes(array))
    return digest.hexdigest()


class NpyData(ArrayData):
    """Samples in ``.npy`` files; the workers of a host share the pages that they read.

    Exact on resume because a sample is found by its row, and the files may not change during a
    run: shapes, types and some rows are compared at each start.

    Args:
        x: the file of the inputs, or a dict, list or tuple of files.
        y: the same for targets, None for a model that needs none.
        sample_weight: the same for sample weights.

    Raises:
        ProgramError: a file is no ``.npy`` file, or files have different numbers of rows.
    """

    def __init__(self, x: Nest, y: Nest = None, sample_weight: Nest = None) -> None:
        super().__init__(*(map_leaves(_mapped, part) for part in (x, y, sample_weight)))


def _mapped(path: str | os.PathLike[str]) -> Any:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ProgramError(
            f"{os.fspath(path)} cannot be mapped as a .npy file: {error}; write it with "
            "numpy.save, as numbers or texts of one length"
        ) from error
    if not isinstance(found, np.ndarray):
        found.close()
        raise ProgramError(
            f"{os.fspath(path)} is an archive of several arrays, which cannot be mapped: write "
            "each array to a .npy file, with numpy.save"
        )
    return found


class _Probed:
    """Data that tell by some samples whether they are the same."""

    def fingerprint(self) -> str:
        """Return a digest of the number of samples and of some, which is made once."""
        return self._fingerprint

    _fingerprint = functools.cached_property(probe_of)


class WindowData(_Probed):
    """Windows of a series, as ``keras.utils.timeseries_dataset_from_array`` cuts them.

    Exact on resume because a window is found by its number, and the series may not change
    during a run: some windows are compared at each start.

    The windows overlap, but only those of a step are in memory.  The series may be a memory
    map (``numpy.load(path, mmap_mode="r")``).

    Args:
        data: the series; the first axis counts moments.
        targets: the target of the window that begins at each moment, None for none.
        sequence_length: entries of a window.
        sequence_stride: moments from the begin of one window to that of the next.
        sampling_rate: moments from one entry of a window to the next.
        start_index: the first moment that is used, None for the first of all.
        end_index: the moment after the last one that is used, None for the end.

    Raises:
        ProgramError: there is no window, or a number makes no sense.
    """

    def __init__(
        self,
        data: npt.ArrayLike,
        targets: npt.ArrayLike | None,
        sequence_length: int,
        *,
        sequence_stride: int = 1,
        sampling_rate: int = 1,
        start_index: int | None = None,
        end_index: int | None = None,
    ) -> None:
        steps = {
            "sequence_length": sequence_length,
            "sequence_stride": sequence_stride,
            "sampling_rate": sampling_rate,
        }
        for name, value in steps.items():
            if value < 1:
                raise ProgramError(f"WindowData({name}={value}): give at least 1")
        self._series = np.asarray(data)[start_index:end_index]
        self._targets = None if targets is None else np.asarray(targets)[start_index:end_index]
        self._stride = sequence_stride
        self._offsets = np.arange(sequence_length, dtype=np.int64) * sampling_rate
        begins = len(self._series) - int(self._offsets[-1])
        if self._targets is not None:
            begins = min(begins, len(self._targets))
        self._windows = -(-begins // sequence_stride)
        if self._windows < 1:
            raise ProgramError(
                f"{len(self._series)} moments hold no window of {sequence_length} entries at "
                f"sampling_rate={sampling_rate}: give a longer series, or a shorter window"
            )

    def __len__(self) -> int:
        return self._windows

    def read(self, ids: SampleIds) -> Samples:
        """Return these windows and their targets.

        Raises:
            IndexError: an id is not that of a window.
        """
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._windows:
            raise IndexError(f"there are {self._windows} windows, and not all of {ids}")
        begins = ids * self._stride
        x: Any = self._series[begins[:, None] + self._offsets]
        return x, None if self._targets is None else self._targets[begins]


_NUMBERS_AND_TEXTS = "biufSO"
_NEAR_BYTES = 1 << 16
"""In a dataset without chunks, samples this near each other are read with what is between them."""


class HDF5Data(_Probed):
    """Samples in the datasets of an HDF5 file; only those that a step needs are read.

    Exact on resume because a sample is found by its row, and the file may not change during a
    run: shapes, types and some rows are compared at each start.

    Chunked and compressed datasets are read chunk by chunk.  With shuffled samples a chunk is
    read for each of its rows, so small chunks are faster.

    Args:
        path: the file; every worker opens it for reading.
        x: the name of the dataset of inputs, or a dict, list or tuple of names.
        y: the same for targets, None for a model that needs none.
        sample_weight: the same for sample weights.

    Raises:
        ProgramError: the file cannot be read, a dataset is not there, or datasets have
            different numbers of rows.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        x: Nest,
        y: Nest = None,
        sample_weight: Nest = None,
    ) -> None:
        self._path = os.fspath(path)
        self._file = _opened(self._path)
        given = {"x": x, "y": y, "sample_weight": sample_weight}
        parts = {name: map_leaves(self._dataset, nest) for name, nest in given.items()}
        self._parts = tuple(parts.values())
        self._samples = count_samples(parts)

    def __len__(self) -> int:
        return self._samples

    def read(self, ids: SampleIds) -> Samples:
        """Return these samples, copied from the file.

        Raises:
            ProgramError: the file cannot be read any more.
        """
        x, y, weights = (map_leaves(lambda d: self._rows(d, ids), part) for part in self._parts)
        return (x, y) if weights is None else (x, y, weights)

    def _dataset(self, name: Any) -> Any:
        found = self._file.get(name) if isinstance(name, str) else None
        if not isinstance(found, h5py.Dataset):
            known: list[str] = []

            def note(path: str, item: Any) -> None:
                if isinstance(item, h5py.Dataset):
                    known.append(path)

            self._file.visititems(note)
            raise ProgramError(
                f"{self._path} has no dataset {name!r}: it has {', '.join(known) or 'none'}"
            )
        if not found.shape or not found.shape[0]:
            raise ProgramError(
                f"dataset {name!r} of {self._path} has the shape {found.shape} and holds no "
                "samples: it needs at least one along its first axis"
            )
        kind, is_text = found.dtype.kind, h5py.check_string_dtype(found.dtype) is not None
        is_plain = kind in _NUMBERS_AND_TEXTS and found.dtype.subdtype is None
        if not is_plain or (kind == "O" and not is_text):
            raise ProgramError(
                f"dataset {name!r} of {self._path} has the type {found.dtype}, which is no number "
                "and no text: store one dataset for each field, and rows of one length"
            )
        return found

    def _rows(self, dataset: Any, ids: SampleIds) -> npt.NDArray[Any]:
        try:
            return _read_rows(dataset, ids)
        except OSError as error:
            raise ProgramError(
                f"dataset {dataset.name!r} of {self._path} cannot be read: {error}"
            ) from error


def _opened(path: str) -> Any:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ProgramError(
            f"{path} cannot be opened as an HDF5 file: {error}; a file that the script has "
            "written must be closed first"
        ) from error


def _read_rows(dataset: Any, ids: SampleIds) -> npt.NDArray[Any]:
    """Return the rows ``ids`` of an ``h5py.Dataset``, in this order; an id may come twice.

    Raises:
        IndexError: an id is not that of a row.
    """
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(dataset):
        raise IndexError(f"{dataset.name} has {len(dataset)} rows, and not all of {ids}")
    found = np.empty((len(ids), *dataset.shape[1:]), dataset.dtype)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    for part in _near_each_other(ordered, _reach(dataset)):
        rows = ordered[part]
        block = dataset[int(rows[0]) : int(rows[-1]) + 1]
        found[order[part]] = block[rows - rows[0]]
    return found


def _near_each_other(ordered: SampleIds, reach: int) -> Iterator[slice]:
    """Yield the parts of ``ordered`` whose ids lie in the same block of ``reach`` rows."""
    stops = np.flatnonzero(np.diff(ordered // reach)) + 1
    bounds = [0, *stops.tolist(), len(ordered)]
    yield from (slice(a, b) for a, b in itertools.pairwise(bounds) if a < b)


def _reach(dataset: Any) -> int:
    """Return how many rows are read at once: a chunk's, or as many as are near."""
    if dataset.chunks is not None:
        return int(dataset.chunks[0])
    row_bytes: int = math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
    return max(1, _NEAR_BYTES // max(1, row_bytes))
