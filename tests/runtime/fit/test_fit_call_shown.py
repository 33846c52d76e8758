"""What a call of ``fit`` shows of its training, and of its mistakes."""

from __future__ import annotations

import pytest

from holdfast.runtime.fit.fit_call import FitCall


@pytest.mark.parametrize(
    ("verbose", "shown"), [("auto", 1), (0, 0), (1, 1), (2, 2), (True, 1), (False, 0)]
)
def test_verbose_is_keras_own(verbose: object, shown: int) -> None:
    assert FitCall(verbose=verbose).shown == shown


def test_argument_that_fit_does_not_have_is_named_as_the_scripts() -> None:
    words = r"^Model\.fit\(\) got an unexpected keyword argument 'epoch'"

    with pytest.raises(TypeError, match=words):
        FitCall.of(None, epoch=3)
    assert FitCall.of(None, None, 8, epochs=3) == FitCall(batch_size=8, epochs=3)
