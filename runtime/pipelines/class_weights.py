"""Sample weights from class weights, by the rules of Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.runtime.errors import ProgramError


def class_weights_of(y: Any, class_weight: Mapping[int, float]) -> npt.NDArray[np.float32]:
    """Return the weight of each entry of ``y``: class numbers, or one-hot rows.

    A class that ``class_weight`` does not name weighs 1.

    Raises:
        ProgramError: ``y`` is no single array.
    """
    if not hasattr(y, "shape"):
        raise ProgramError(
            "class_weight needs a single array of targets: give sample weights for a model with "
            "several outputs"
        )
    classes = np.asarray(y)
    if classes.ndim > 1:
        is_one_hot = classes.shape[-1] > 1
        classes = classes.argmax(-1) if is_one_hot else np.rint(classes[..., 0])
    numbers = np.rint(classes).astype(np.int64)
    known = max(int(number) for number in class_weight)
    table = np.array([class_weight.get(number, 1.0) for number in range(known + 1)], np.float32)
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) <= known:
        raise ProgramError(
            f"y has classes from {numbers.min()} to {numbers.max()}, and class_weight names "
            f"0 to {known}: add a weight for each class of y"
        )
    found: npt.NDArray[np.float32] = table[numbers]
    return found
