"""What is special about each class of Keras's callbacks."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.tensorflow


def test_a_callback_that_waits_for_a_loss_that_is_not_finite_costs_nothing_before() -> None:
    keras = pytest.importorskip("keras")
    from holdfast.runtime.callbacks.callback_rules import acts, ends_at_nan, flat, needs_logs

    class Own(keras.callbacks.TerminateOnNaN):  # type: ignore[misc,name-defined]
        pass

    of_keras, own, other = keras.callbacks.TerminateOnNaN(), Own(), keras.callbacks.EarlyStopping()

    assert [ends_at_nan(callback) for callback in (of_keras, own, other)] == [True, True, False]
    assert not acts(of_keras, "on_train_batch_end")
    assert not needs_logs(of_keras)
    assert acts(own, "on_train_batch_end")
    assert needs_logs(own)
    assert flat(None) == []
    assert flat(other) == [other]
    assert flat(keras.callbacks.CallbackList([own], add_history=False)) == [own]
