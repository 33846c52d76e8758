"""Windows of a series: each sample is cut out when it is read."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import SampleIds, Samples
from holdfast.runtime.samples.probe import probe_of


class WindowData:
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

    def fingerprint(self) -> str:
        """Return a digest of the number of windows and of some, which is made once."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        return probe_of(self)

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
