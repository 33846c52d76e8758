"""What a call of ``fit`` shows of its training."""

from __future__ import annotations

import pytest

from holdfast.runtime.fit.fit_call import FitCall


@pytest.mark.parametrize(
    ("verbose", "shown"), [("auto", 1), (0, 0), (1, 1), (2, 2), (True, 1), (False, 0)]
)
def test_verbose_is_keras_own(verbose: object, shown: int) -> None:
    assert FitCall(verbose=verbose).shown == shown
