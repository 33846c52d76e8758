"""What a call of ``fit`` shows of its training, and of its mistakes."""

from __future__ import annotations

import pytest

from holdfast.runtime.fit.fit_call import FitCall


@pytest.mark.parametrize(
    ("verbose", "shown"), [("auto", 1), (0, 0), (1, 1), (2, 2), (True, 1), (False, 0)]
)
def test_verbose_is_keras_own(verbose: object, shown: int) -> None:
    assert FitCall(verbose=verbose).shown == shown


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ((None, None), (9, None, 4)),
        ((0, 0), (9, None, 4)),
        ((3, None), (3, None, 4)),
        ((20, 2), (9, 2, 2)),
        ((9, 7), (9, 7, 4)),
    ],
)
def test_limits_of_keras_config_hold_for_epochs_and_for_steps_of_both_kinds(
    limits: tuple[int | None, int | None], found: tuple[int, int | None, int]
) -> None:
    call = FitCall(epochs=9, validation_steps=4).within(*limits)

    assert (call.epochs, call.steps_per_epoch, call.validation_steps) == found


def test_argument_that_fit_does_not_have_is_named_as_the_scripts() -> None:
    words = r"^Model\.fit\(\) got an unexpected keyword argument 'epoch'"

    with pytest.raises(TypeError, match=words):
        FitCall.of(None, epoch=3)
    assert FitCall.of(None, None, 8, epochs=3) == FitCall(batch_size=8, epochs=3)
