"""The data of a call of ``fit``: arrays, pipelines, and the mark of what was read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from local_communicator import LocalCommunicator

from holdfast.recovery.work_plan import NO_END
from holdfast.runtime.data.feed import Feed, Pipelines
from holdfast.runtime.data.samples import ArrayData
from holdfast.runtime.data.source import generator_source
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.keras.fit_call import FitCall, leave_pipelines, supply_of

X = np.arange(20, dtype=np.float32).reshape(10, 2)

Y = np.arange(10) % 3

ALL = np.arange(10)

SEED = 7


def supply(call: FitCall) -> Any:
    return supply_of(call, SEED, lambda text: None)


def test_last_part_is_held_out() -> None:
    arrays = supply(FitCall({"a": X, "b": Y}, Y, validation_split=0.25, sample_weight=ALL))
    numbered = supply(FitCall(_Numbered(10), validation_split=0.25, class_weight={1: 5.0}))

    x, y, weights = arrays.validation.read(np.arange(3))
    assert weights.tolist() == [7, 8, 9]
    np.testing.assert_array_equal(x["a"], X[7:])
    np.testing.assert_array_equal(y, Y[7:])
    np.testing.assert_array_equal(numbered.validation.read(np.array([2, 0]))[0], [[9], [7]])
    np.testing.assert_array_equal(numbered.training.read(np.array([4, 5]))[2], [5, 1])
    assert len(numbered.validation.read(np.arange(3))) == 2  # classes do not weigh there


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ({"validation_split": 0.25}, (7, 3)),  # floor(10 * 0.75)
        ({"validation_split": 0.01}, (9, 1)),
        ({"validation_split": 0.5, "validation_data": (X[:4], Y[:4])}, (10, 4)),
        ({"validation_data": (X,)}, (10, 10)),
        ({"validation_data": [X, Y]}, (10, 10)),
        ({"validation_data": (X, Y, ALL)}, (10, 10)),
    ],
)
def test_samples_that_train_and_validate_are_counted(
    arguments: dict[str, Any], sizes: tuple[int, int]
) -> None:
    for call in (FitCall(X, Y, **arguments), FitCall(_Numbered(10), **arguments)):
        data = supply(call)

        assert data.validation is not None
        assert (len(data.training), len(data.validation)) == sizes


@pytest.mark.parametrize("targets", [Y, Y.reshape(10, 1), np.eye(3)[Y], Y.astype(np.float32)])
def test_class_weight_weighs_each_sample_by_its_class(targets: Any) -> None:
    data = supply(FitCall(X, targets, class_weight={0: 2.0, 2: 0.5}))

    np.testing.assert_array_equal(data.training.read(ALL)[2], [2, 1, 0.5, 2, 1, 0.5, 2, 1, 0.5, 2])


@pytest.mark.parametrize(
    ("y", "weights", "said"),
    [(Y, ALL, "class_weight and sample_weight"), ((Y, Y), None, "one array of targets, got 2")],
)
def test_class_weight_that_is_not_clear_is_refused(y: Any, weights: Any, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        supply(FitCall(X, y, sample_weight=weights, class_weight={0: 1.0})).training.read(ALL)


@pytest.mark.parametrize("share", [0.96, 1.0])
def test_split_that_leaves_nothing_is_refused_with_both_numbers(share: float) -> None:
    for x, y in ((X, Y), (_Numbered(10), None)):
        with pytest.raises(ProgramError, match=rf"{share}\) leaves 0 of 10 samples for tr"):
            supply(FitCall(x, y, validation_split=share))


@pytest.mark.parametrize(
    ("call", "samples", "batch", "validation_batch"),
    [
        (FitCall(X), 10, 32, 32),
        (FitCall(X, batch_size=8), 10, 8, 8),
        (FitCall(X, batch_size=8, validation_batch_size=3), 10, 8, 3),
        (FitCall(X, steps_per_epoch=3, validation_steps=4), 10, 4, 3),
        (FitCall(None, steps_per_epoch=3, validation_steps=4), 0, 32, 32),
    ],
    ids=["default", "one size", "two sizes", "steps", "steps of a pipeline"],
)
def test_batches_are_those_of_keras(
    call: FitCall, samples: int, batch: int, validation_batch: int
) -> None:
    assert (call.global_batch(samples), call.validation_batch(samples)) == (batch, validation_batch)


def test_steps_of_larger_batches_are_fewer_and_none_is_refused() -> None:
    assert FitCall(X).steps_of_samples(2) is None
    assert FitCall(X, steps_per_epoch=5).steps_of_samples(2) == 3
    with pytest.raises(ProgramError, match=r"validation_steps=0.: give at least 1"):
        supply(FitCall(X, Y, validation_data=(X, Y), validation_steps=0))
    with pytest.raises(ProgramError, match=r"steps_per_epoch=0.: give at least 1"):
        FitCall(X, Y, steps_per_epoch=0).steps_of_samples(1)


class _Numbered:
    """Samples that are read by number: each is its own number."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def read(self, ids: Any) -> Any:
        return ids[:, None].astype(np.float32), ids % 3


def test_fingerprint_of_a_part_tells_the_part_and_the_weights() -> None:
    whole = ArrayData(X, Y)
    calls = (
        FitCall(whole, validation_split=0.25),
        FitCall(whole, validation_split=0.5),
        FitCall(whole, validation_split=0.5, class_weight={1: 2.0}),
    )

    prints = {supply(call).training.fingerprint() for call in calls}

    assert len(prints) == 3


@pytest.mark.parametrize("beside", [{"y": Y}, {"sample_weight": ALL}])
def test_arrays_beside_data_are_refused(beside: dict[str, Any]) -> None:
    with pytest.raises(ProgramError, match="beside a _Numbered: its read"):
        supply(FitCall(_Numbered(10), **beside))


@pytest.mark.parametrize(
    ("given", "kind"),
    [({"x": X}, "dict"), (X, "ndarray"), ((), "tuple"), ((X, Y, ALL, ALL), "tuple")],
    ids=["dict", "array", "nothing", "too many"],
)
def test_validation_data_of_another_kind_are_refused(given: Any, kind: str) -> None:
    with pytest.raises(ProgramError, match=rf"^fit\(validation_data=\.\.\.\) got {kind}: give "):
        supply(FitCall(X, Y, validation_data=given))


@pytest.mark.parametrize(("steps", "samples"), [(None, 5), (1, 2), (2, 4), (9, 5)])
def test_steps_of_validation_are_the_first_ones_of_all_kinds_of_validation_data(
    steps: int | None, samples: int
) -> None:
    calls = (
        FitCall(X, Y, 2, validation_split=0.5, validation_steps=steps),
        FitCall(_Numbered(10), None, 2, validation_split=0.5, validation_steps=steps),
        FitCall(X, Y, 2, validation_data=_Numbered(5), validation_steps=steps),
    )

    sizes = [len(found) for call in calls if (found := supply(call).validation) is not None]

    assert sizes == [samples] * 3
    np.testing.assert_array_equal(supply(calls[0]).validation.read(np.array([1]))[0], X[6:7])


def feed(*values: int) -> Feed:
    """Return batches of these values, which can only be read one after the other."""
    elements = (np.full((2, 1), value, np.float32) for value in values)
    return Feed(generator_source(elements), len(values))


def read(source: Feed, *steps: int) -> list[float]:
    found = (source.train_batch(step, LocalCommunicator()).parts[0] for step in steps)
    return [float(np.asarray(x)[0, 0]) for x in found]


def notes_after(*steps: int, values: tuple[int, ...] = (1, 2, 3)) -> Any:
    """Return the notes of a launch that has read these steps, as a checkpoint keeps them."""
    source = feed(*values)
    read(source, *steps)
    return json.loads(json.dumps(Pipelines(source).notes()))


def test_notes_hold_the_mark_of_the_last_batch_of_what_is_read_in_order() -> None:
    source, numbered = feed(1, 2), supply(FitCall(X, Y, validation_split=0.25))
    assert Pipelines(source).notes() == {}
    assert Pipelines(numbered.training, numbered.validation).notes() == {}

    read(source, 0, 1)

    assert source.mark is not None
    mark = [0, 1, source.mark.chain, 1, source.mark.last]
    assert Pipelines(source).notes() == {"pipeline": mark}


@pytest.mark.parametrize(
    ("values", "is_whole", "is_refused"),
    [((1, 2, 3), 1, False), ((1, 9, 3), 1, True), ((7, 2, 3), 0, False)],
    ids=["the same", "another batch", "only the last batch is proved"],
)
def test_launch_goes_on_if_it_reads_the_same_again_up_to_the_mark(
    values: tuple[int, ...], is_whole: int, *, is_refused: bool
) -> None:
    source, notes = feed(*values), notes_after(0, 1)
    notes["pipeline"][3] = is_whole
    Pipelines(source).resume(notes)

    if is_refused:
        with pytest.raises(ProgramError, match="other samples when it was read again, at or befor"):
            read(source, 2)
    else:
        assert read(source, 2) == [3.0]


@pytest.mark.parametrize("notes", [None, {}, {"pipeline": None}], ids=str)
def test_notes_without_a_mark_leave_the_pipeline_as_it_is(notes: Any) -> None:
    source = feed(1, 9)

    Pipelines(source).resume(notes)

    assert read(source, 0, 1) == [1.0, 9.0]


COLUMN = np.arange(10, dtype=np.float32)[:, None]

PARITY = np.arange(10) % 2


def batches(count: int = 3, *more: Any) -> Iterator[Any]:
    """Yield batches of two samples of the classes 0 and 1; x is the number of the batch."""
    for number in range(count):
        yield (np.full((2, 1), number, np.float32), np.array([0, 1]), *more)


def first_of(feed: Any) -> Any:
    return feed.parts(feed.first(), 0, 2)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"y": PARITY}, r"^fit\(\) got y beside a pipeline: let its batches be \(x, y\)"),
        ({"sample_weight": PARITY}, r"^fit\(\) got sample_weight beside a pipeline"),
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


@pytest.mark.tensorflow
def test_steps_are_the_batches_that_are_taken_of_a_generator() -> None:
    once = supply(FitCall(batches(), epochs=4, initial_epoch=3))
    given = _validated(batches(9), 2)
    asked = supply(FitCall(batches(9), epochs=2, steps_per_epoch=4, **given))

    assert (once.training.steps, once.validation) == (3, None)
    assert (asked.training.steps, asked.validation.steps) == (4, 2)


def _validated(pipeline: Any, steps: int) -> dict[str, Any]:
    return {"validation_data": pipeline, "validation_steps": steps}


@pytest.mark.tensorflow
def test_arrays_validate_what_a_pipeline_trains() -> None:
    data = supply(FitCall(batches(), batch_size=3, **_validated((COLUMN, PARITY), 2)))

    assert first_of(data.training)[0].tolist() == [[0], [0]]
    assert len(data.validation) == 6


@pytest.mark.tensorflow
def test_pipeline_validates_what_arrays_train_and_no_sample_is_held_out() -> None:
    call = FitCall(
        COLUMN, PARITY, validation_split=0.5, class_weight={1: 3.0}, **_validated(batches(), 1)
    )

    data = supply(call)

    assert len(data.training) == 10
    assert data.training.read(np.array([0, 1]))[2].tolist() == [1, 3]
    assert data.validation.steps == 1


@pytest.mark.tensorflow
def test_classes_weigh_in_the_training_alone() -> None:
    data = supply(FitCall(batches(), class_weight={1: 3.0}, validation_data=batches()))

    assert first_of(data.training)[2].tolist() == [1, 3]
    assert first_of(data.validation)[2] is None


@pytest.mark.tensorflow
@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_of_a_py_dataset_come_in_order_unless_they_are_shuffled(*, shuffle: bool) -> None:
    keras = pytest.importorskip("keras")

    class Numbers(keras.utils.PyDataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return np.full((1, 1), index, np.float32), np.zeros((1, 1), np.float32)

    call = FitCall(Numbers(), shuffle=shuffle, validation_data=Numbers())
    data = supply(call)
    here = LocalCommunicator()
    trained = [data.training.train_batch(step, here).parts[0][0, 0] for step in range(8)]
    validated = [data.validation.validation_batch((0, n), here).parts[0][0, 0] for n in range(8)]

    assert sorted(trained) == validated == list(range(8))
    assert (trained != validated) is shuffle


@pytest.mark.tensorflow
def test_generator_beyond_what_is_kept_ends_its_epoch_where_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from holdfast.runtime.data import source

    monkeypatch.setattr(source, "_MOST_KEPT", 2)
    here, generator = LocalCommunicator(), batches(5)
    data = supply(FitCall(generator))
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


@pytest.mark.tensorflow
def test_dataset_that_repeats_has_no_end_but_the_one_of_a_callback() -> None:
    tf = pytest.importorskip("tensorflow")
    said: list[str] = []

    dataset = tf.data.Dataset.from_tensor_slices((COLUMN, PARITY)).batch(4).repeat()
    feed: Any = supply_of(FitCall(dataset, epochs=3), SEED, said.append).training
    sizes = [feed.train_batch(n, LocalCommunicator()).samples for n in range(5)]

    assert (feed.steps, sizes, feed.is_at_end) == (NO_END, [4, 4, 2, 4, 4], False)
    assert "until its data end, or a callback sets model.stop_training" in said[0]


@pytest.mark.tensorflow
def test_generators_of_a_fit_that_is_over_go_on_after_all_that_was_read() -> None:
    training, validation = batches(9), batches(9)
    call = FitCall(training, steps_per_epoch=2, epochs=2, **_validated(validation, 3))

    leave_pipelines(supply(call), 4, 2)

    assert next(training)[0][0, 0] == 4
    assert next(validation)[0][0, 0] == 4  # each validation has read two batches again
    leave_pipelines(supply(FitCall(COLUMN, PARITY, validation_data=(COLUMN, PARITY))), 4, 2)
