"""Data made of other data: some of the samples, or all of them weighed by their classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import Data, Fingerprinted, SampleIds, Samples
from holdfast.runtime.model.replica import leaves


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


def no_classes(class_weight: Mapping[Any, float] | None) -> list[Any]:
    """Return the keys that name no class, such as strings: Keras looks up integers."""
    return [key for key in class_weight or () if not _is_number(key)]


def class_weights_of(y: Any, class_weight: Mapping[Any, float]) -> npt.NDArray[np.float32]:
    """Return the weight of each entry of ``y``: class numbers, or one-hot rows.

    A class that ``class_weight`` does not name weighs 1.

    Raises:
        ProgramError: ``y`` is more than one array, or none.
    """
    targets = leaves(y)
    if len(targets) != 1:
        raise ProgramError(
            f"fit(class_weight=...) needs one array of targets, got {len(targets)}: "
            "give sample_weight for each output"
        )
    classes = np.asarray(targets[0])
    if classes.ndim > 1:
        is_one_hot = classes.shape[-1] > 1
        classes = classes.argmax(-1) if is_one_hot else np.rint(classes[..., 0])
    numbers = np.rint(classes).astype(np.int64)
    found = np.ones(numbers.shape, np.float32)
    for key, weight in class_weight.items():
        if _is_number(key):
            found[numbers == key] = weight
    return found


def _is_number(key: object) -> bool:
    return isinstance(key, (int, float, np.number, np.bool_))
