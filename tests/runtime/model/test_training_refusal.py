"""A script that is only asked for its model comes to its training, and is stopped there."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import ArrayData
from holdfast.runtime.model.training_refusal import (
    RefusedTraining,
    TrainingRefused,
    check_training,
    training_refused,
)

DATA = ArrayData(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))


def test_who_wants_to_train_is_not_stopped() -> None:
    check_training("model", DATA)


def test_training_that_nobody_wants_is_stopped_and_listed() -> None:
    with training_refused() as refused:
        assert refused == []
        with pytest.raises(TrainingRefused, match="only asked for its model"):
            check_training("model", DATA)

    assert refused == [RefusedTraining("model", DATA)]


def test_every_training_of_a_script_is_listed_in_its_order() -> None:
    with training_refused() as refused:
        for model in ("first", "second"):
            with pytest.raises(TrainingRefused):
                check_training(model, DATA)

    assert [training.model for training in refused] == ["first", "second"]


def test_refusal_ends_with_its_block_whatever_the_script_did() -> None:
    with pytest.raises(KeyError), training_refused():
        raise KeyError("a mistake of the script")

    check_training("model", DATA)


def test_next_script_has_a_list_of_its_own() -> None:
    with training_refused() as first, pytest.raises(TrainingRefused):
        check_training("model", DATA)
    with training_refused() as second:
        pass

    assert (len(first), len(second)) == (1, 0)


def test_refusal_is_an_error_of_the_program_where_nobody_expects_it() -> None:
    assert issubclass(TrainingRefused, ProgramError)
