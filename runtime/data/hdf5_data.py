"""Samples in the datasets of an HDF5 file, read in place."""

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

from holdfast.runtime.data.array_data import probe_of
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import SampleIds, Samples, count_samples
from holdfast.runtime.model.replica import Nest, map_leaves

_NUMBERS_AND_TEXTS = "biufSO"
_NEAR_BYTES = 1 << 16
"""In a dataset without chunks, samples this near each other are read with what is between them."""


class HDF5Data:
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

    def fingerprint(self) -> str:
        """Return a digest of names, shapes, types and some rows, which is made once."""
        return self._fingerprint

    _fingerprint = functools.cached_property(probe_of)

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
        if not _is_plain(found.dtype):
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


def _is_plain(dtype: np.dtype[Any]) -> bool:
    is_text = dtype.kind != "O" or h5py.check_string_dtype(dtype) is not None
    return dtype.kind in _NUMBERS_AND_TEXTS and dtype.subdtype is None and is_text
