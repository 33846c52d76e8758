"""Data made of other data: some of the samples, or all of them with other weights."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import Data, Fingerprinted, SampleIds, Samples
from holdfast.runtime.pipelines.class_weights import class_weights_of


class SampleRange:
    """The samples ``start <= sample < stop`` of other data, counted from 0 again."""

    def __init__(self, data: Data, start: int, stop: int) -> None:
        self._data = data
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    def fingerprint(self) -> str:
        """Return that of the other data, if they have one, and the range."""
        return f"{_fingerprint_of(self._data)} {self._start}:{self._stop}"

    def read(self, ids: SampleIds) -> Samples:
        """Return these samples of the range."""
        return self._data.read(ids + self._start)


class WeighedByClass:
    """Other data, whose samples weigh what ``class_weight`` says of their targets."""

    def __init__(self, data: Data, class_weight: Mapping[int, float]) -> None:
        self._data = data
        self._class_weight = class_weight

    def __len__(self) -> int:
        return len(self._data)

    def fingerprint(self) -> str:
        """Return that of the other data, if they have one, and the weights."""
        return f"{_fingerprint_of(self._data)} {sorted(self._class_weight.items())}"

    def read(self, ids: SampleIds) -> Samples:
        """Return these samples with their weights.

        Raises:
            ProgramError: they have weights of their own, or targets that are no classes.
        """
        x, y, *weights = self._data.read(ids)
        if any(weight is not None for weight in weights):
            raise ProgramError(
                "fit() got class_weight, and data with sample weights: multiply them in the data"
            )
        return x, y, class_weights_of(y, self._class_weight)


def _fingerprint_of(data: Data) -> str:
    return data.fingerprint() if isinstance(data, Fingerprinted) else "unknown"
