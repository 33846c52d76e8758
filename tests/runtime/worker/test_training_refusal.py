"""A script that is only asked for its model comes to its training, and is stopped there."""

from __future__ import annotations

import pytest

from holdfast.runtime.worker.training_refusal import TrainingRefused, is_refused, training_refused


def first_inputs() -> str:
    return "inputs"


def test_who_wants_to_train_is_not_stopped() -> None:
    assert not is_refused("model", first_inputs)


def test_training_that_is_wanted_for_its_model_is_stopped() -> None:
    with training_refused() as refusal:
        assert refusal.training is None
        with pytest.raises(TrainingRefused, match="only asked for its model"):
            is_refused("model", first_inputs)

    assert refusal.training is not None
    assert (refusal.training.model, refusal.training.first_inputs()) == ("model", "inputs")


def test_earlier_trainings_of_a_script_are_passed_over() -> None:
    with training_refused(wanted=3) as refusal:
        assert is_refused("first", first_inputs)
        assert is_refused("second", first_inputs)
        assert refusal.training is None
        with pytest.raises(TrainingRefused):
            is_refused("third", first_inputs)

    assert refusal.training is not None
    assert refusal.training.model == "third"


def test_refusal_ends_with_its_block_whatever_the_script_did() -> None:
    with pytest.raises(KeyError), training_refused():
        raise KeyError("a mistake of the script")

    assert not is_refused("model", first_inputs)


def test_next_script_is_asked_anew() -> None:
    with training_refused() as first, pytest.raises(TrainingRefused):
        is_refused("model", first_inputs)
    with training_refused() as second:
        pass

    assert first.training is not None
    assert second.training is None


def test_script_that_catches_the_refusal_and_goes_on_is_refused_again() -> None:
    with training_refused() as refusal:
        for model in ("first", "second"):
            with pytest.raises(TrainingRefused):
                is_refused(model, first_inputs)

    assert refusal.training is not None
    assert refusal.training.model == "first"


def test_refusal_is_not_caught_with_every_exception() -> None:
    assert not issubclass(TrainingRefused, Exception)
