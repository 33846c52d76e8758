"""Pipelines of a call become feeds, beside arrays too; arguments that contradict are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from holdfast.recovery.work_plan import NO_END
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.communicator import LocalCommunicator
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.fit.fit_data import FitData

pytestmark = pytest.mark.tensorflow

X = np.arange(10, dtype=np.float32)[:, None]
Y = np.arange(10) % 2
SEED = 7


def batches(count: int = 3, *more: Any) -> Iterator[Any]:
    """Yield batches of two samples of the classes 0 and 1; x is the number of the batch."""
    for number in range(count):
        yield (np.full((2, 1), number, np.float32), np.array([0, 1]), *more)


def supply(call: FitCall) -> FitData:
    from holdfast.runtime.fit.fit_data import supply_of

    return supply_of(call, SEED, lambda text: None)


def first_of(feed: Any) -> Any:
    return feed.parts(feed.first(), 0, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"y": Y}, r"^fit\(\) got y beside a pipeline: let its batches be \(x, y\)"),
        ({"sample_weight": Y}, r"^fit\(\) got sample_weight beside a pipeline"),
        ({"validation_split": 0.5}, r"cannot cut a pipeline: give validation_data"),
        ({"epochs": 2}, r"ended after 3 batches, and fit\(epochs=2\) reads it more than once"),
        ({"epochs": 5, "initial_epoch": 3}, r"ended after 3 batches, and fit\(epochs=5\)"),
        ({"steps_per_epoch": 0}, r"fit\(steps_per_epoch=0\): give at least 1"),
        ({"x": batches(0)}, "the generator gave no batch"),
        ({"x": batches(3, np.ones(2)), "class_weight": {0: 2.0}}, "exclude each other"),
        ({"validation_data": batches(0)}, "the generator gave no batch"),
        ({"validation_data": batches(0), "validation_steps": 2}, "the generator gave no batch"),
        ({"validation_data": batches(), "validation_steps": 0}, r"validation_steps=0\)"),
        ({"validation_data": 3}, r"fit\(validation_data=...\) got int: give \(x, y\)"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_arguments_that_do_not_go_with_a_pipeline_are_refused(
    arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ProgramError, match=said):
        supply(FitCall(**{"x": batches(), **arguments}))


def test_generator_that_ends_may_be_read_once() -> None:
    data: Any = supply(FitCall(batches(), epochs=4, initial_epoch=3))

    assert data.training.steps == 3
    assert data.validation is None


def test_steps_are_the_batches_that_are_taken_of_a_generator() -> None:
    data: Any = supply(
        FitCall(batches(9), epochs=2, steps_per_epoch=4, **_validated(batches(9), 2))
    )

    assert (data.training.steps, data.validation.steps) == (4, 2)


def _validated(pipeline: Any, steps: int) -> dict[str, Any]:
    return {"validation_data": pipeline, "validation_steps": steps}


def test_arrays_validate_what_a_pipeline_trains() -> None:
    data: Any = supply(FitCall(batches(), batch_size=3, **_validated((X, Y), 2)))

    assert first_of(data.training)[0].tolist() == [[0], [0]]
    assert len(data.validation) == 6


def test_pipeline_validates_what_arrays_train_and_no_sample_is_held_out() -> None:
    call = FitCall(X, Y, validation_split=0.5, class_weight={1: 3.0}, **_validated(batches(), 1))

    data: Any = supply(call)

    assert len(data.training) == 10
    assert data.training.read(np.array([0, 1]))[2].tolist() == [1, 3]
    assert data.validation.steps == 1


def test_classes_weigh_in_the_training_alone() -> None:
    data: Any = supply(FitCall(batches(), class_weight={1: 3.0}, validation_data=batches()))

    assert first_of(data.training)[2].tolist() == [1, 3]
    assert first_of(data.validation)[2] is None


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_of_a_py_dataset_come_in_order_unless_they_are_shuffled(*, shuffle: bool) -> None:
    keras = pytest.importorskip("keras")

    class Numbers(keras.utils.PyDataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return np.full((1, 1), index, np.float32), np.zeros((1, 1), np.float32)

    call = FitCall(Numbers(), shuffle=shuffle, validation_data=Numbers())
    data: Any = supply(call)
    here = LocalCommunicator()
    trained = [data.training.train_batch(step, here).parts[0][0, 0] for step in range(8)]
    validated = [data.validation.validation_batch((0, n), here).parts[0][0, 0] for n in range(8)]

    assert sorted(trained) == validated == list(range(8))
    assert (trained != validated) is shuffle


def test_generator_beyond_what_is_kept_ends_its_epoch_where_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from holdfast.runtime.data import source

    monkeypatch.setattr(source, "_MOST_KEPT", 2)
    here, generator = LocalCommunicator(), batches(5)
    data: Any = supply(FitCall(generator))
    feed = data.training
    trained = [(feed.train_batch(n, here).parts[0][0, 0], feed.is_at_end) for n in range(4)]
    again: Any = supply(FitCall(batches(3), epochs=2)).training
    again.train_batch(1, here)

    assert feed.steps == NO_END
    assert trained == [(0, False), (1, False), (2, False), (3, False)]
    assert feed.train_batch(4, here).parts[0][0, 0] == 4
    assert feed.is_at_end
    with pytest.raises(ProgramError, match=r"ended after 3 batches, and fit\(epochs=2\)"):
        again.train_batch(2, here)


def test_dataset_that_repeats_has_no_end_but_the_one_of_a_callback() -> None:
    tf = pytest.importorskip("tensorflow")
    said: list[str] = []
    from holdfast.runtime.fit.fit_data import supply_of

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).repeat()
    feed: Any = supply_of(FitCall(dataset, epochs=3), SEED, said.append).training
    sizes = [feed.train_batch(n, LocalCommunicator()).samples for n in range(5)]

    assert (feed.steps, sizes, feed.is_at_end) == (NO_END, [4, 4, 2, 4, 4], False)
    assert "until its data end, or a callback sets model.stop_training" in said[0]


def test_generators_of_a_fit_that_is_over_go_on_after_all_that_was_read() -> None:
    from holdfast.runtime.fit.fit_data import leave_pipelines

    training, validation = batches(9), batches(9)
    call = FitCall(training, steps_per_epoch=2, epochs=2, **_validated(validation, 3))

    leave_pipelines(supply(call), 4, 2)

    assert next(training)[0][0, 0] == 4
    assert next(validation)[0][0, 0] == 4  # each validation has read two batches again


def test_arrays_have_nothing_to_leave() -> None:
    from holdfast.runtime.fit.fit_data import leave_pipelines

    leave_pipelines(supply(FitCall(X, Y, validation_data=(X, Y))), 4, 2)
