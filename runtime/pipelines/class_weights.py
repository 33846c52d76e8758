"""Sample weights from class weights, by the rules of Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.nest import leaves


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
