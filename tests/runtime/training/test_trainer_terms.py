"""What the trainer takes, and what it says of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import ArrayData
from holdfast.runtime.training.trainer import Trainer


def test_callbacks_are_refused_with_the_calls_that_take_them() -> None:
    given: Any = [object()]

    with pytest.raises(ProgramError) as caught:
        Trainer(None, ArrayData(np.ones(4)), global_batch=2, epochs=1, callbacks=given)

    assert "Trainer takes no callbacks" in str(caught.value)
    assert "model.fit(..., callbacks=...)" in str(caught.value)
    assert "holdfast.fit(model, ..., callbacks=...)" in str(caught.value)
