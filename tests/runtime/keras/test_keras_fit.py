"""Our ``fit`` in the place of Keras's: requests, rates, downloads and calls without epochs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from configs import worker_config
from keras.src.datasets import mnist
from keras.src.utils import file_utils

from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.keras import keras_fit
from holdfast.runtime.keras.fit_call import FitCall
from holdfast.runtime.keras.keras_fit import (
    ScaledRate,
    _announcement,
    _cut_in_words,
    advice_on_few_samples,
    advice_on_parts,
    take_turns,
)
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.training.training_job import RateScale, Stage, TrainingJob, describe_job

pytestmark = pytest.mark.tensorflow

X = np.arange(10, dtype=np.float32)[:, None]

Training = Callable[..., Any]


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    """Return the training of a call in a job with these options."""

    def make(call: FitCall, **options: Any) -> Any:
        context = SimpleNamespace(config=worker_config(**options), notify=lambda text: None)
        stages = SimpleNamespace(context=context, stage=Stage())
        monkeypatch.setattr(keras_fit, "stages_of_script", lambda: stages)
        return keras_fit._Training(SimpleNamespace(name="digits"), call)

    monkeypatch.setattr(sys, "__stdout__", sys.stdout)  # pytest's, which is no stream of a script
    return make


def job_of(training: Any) -> TrainingJob:
    config = training._stages.context.config
    return describe_job(training._request(), config, Numerics.here(threads=1))


def pipeline(batches: int = 3) -> Any:
    import tensorflow as tf

    count = 2 * batches
    return tf.data.Dataset.from_tensor_slices((np.zeros((count, 1), "f4"),) * 2).batch(2)


def test_arguments_of_the_call_are_those_of_the_training(training: Training) -> None:
    call = FitCall(
        *(X, X, 4),
        epochs=5,
        initial_epoch=2,
        verbose=2,
        shuffle=False,
        steps_per_epoch=2,
        validation_data=(X[:7], X[:7]),
        validation_batch_size=3,
        validation_freq=[5, 4],
    )

    asked = training(call)._request()

    assert (len(asked.data), len(asked.validation)) == (10, 7)
    assert (asked.global_batch, asked.validation_batch, asked.steps_per_epoch) == (4, 3, 2)
    assert (asked.epochs, asked.first_epoch, asked.validated) == (3, 2, (4, 5))
    assert (asked.is_shuffled, asked.verbose) == (False, 2)
    assert (asked.batch_factor, asked.takes_nan) == (1, False)


def test_steps_are_those_of_whole_executions_as_in_keras(training: Training) -> None:
    terms = {"steps_per_epoch": 3, "validation_steps": 1, "validation_split": 0.4}
    arrays = training(FitCall(X, X, 1, per_execution=2, **terms))._request()
    repeated = FitCall(pipeline().repeat(), steps_per_epoch=3, per_execution=2)
    unknown = FitCall((batch for batch in pipeline().repeat()), steps_per_epoch=3, per_execution=2)

    assert (arrays.steps_per_epoch, len(arrays.validation)) == (4, 2)
    assert job_of(training(repeated)).work_plan.steps_per_epoch == 4
    assert job_of(training(unknown)).work_plan.steps_per_epoch == 3


def test_defaults_are_those_of_keras(training: Training) -> None:
    asked = training(FitCall(X, X))._request()

    assert (asked.global_batch, asked.epochs, asked.first_epoch) == (32, 1, 0)
    assert (asked.validation, asked.steps_per_epoch) == (None, None)
    assert (asked.is_shuffled, asked.verbose, asked.validated) == (True, 1, 1)


def test_epochs_are_told_by_the_stream_that_the_script_has_put_in_place(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert training(FitCall(X, X, verbose=2))._request().verbose == 2

    monkeypatch.setattr(sys, "stdout", io.StringIO())

    told, silent = (training(FitCall(X, X, verbose=verbose)) for verbose in (2, 0))
    assert (told._request().verbose, silent._request().verbose) == (0, 0)
    assert (told._tells_script, silent._tells_script) == (True, False)


def test_backend_that_the_script_has_chosen_too_late_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "torch")

    with pytest.raises(ProgramError, match="Keras uses the backend 'torch'"):
        keras_fit.fit(None, FitCall(X, X))


def test_larger_batches_of_a_job_are_fewer_and_the_rate_may_grow_with_them(
    training: Training,
) -> None:
    call = FitCall(X, X, 2, steps_per_epoch=5, validation_data=(X, X))

    asked = training(call, scale_batch=2, scale_rate="linear")._request()

    assert (asked.global_batch, asked.steps_per_epoch) == (4, 3)
    assert asked.validation_batch == 2
    assert asked.batch_factor == 2


def test_batches_of_a_pipeline_cannot_be_made_larger_from_outside(training: Training) -> None:
    larger = training(FitCall(pipeline()), scale_batch=3)

    with pytest.raises(UsageError, match=r"^--scale-batch 3 cannot change the batches of the tf"):
        larger._request()
    assert training(FitCall(pipeline()))._request().global_batch == 32


@pytest.mark.parametrize("kind", ["TerminateOnNaN", "EarlyStopping"])
@pytest.mark.parametrize(
    "wraps", [list, tuple, lambda found: found[0]], ids=["list", "tuple", "one"]
)
def test_steps_that_are_not_finite_are_taken_if_a_callback_waits_for_them(
    training: Training, kind: str, wraps: Callable[[list[Any]], Any]
) -> None:
    callbacks = wraps([getattr(keras.callbacks, kind)()])

    asked = training(FitCall(X, X, callbacks=callbacks))._request()

    assert asked.takes_nan is (kind == "TerminateOnNaN")


@pytest.mark.parametrize(("workers", "words"), [(1, "1 worker"), (3, "3 workers")])
def test_training_is_announced_in_one_line(training: Training, workers: int, words: str) -> None:
    made = training(FitCall(X, X, 4))

    line = _announcement(made._model, job_of(made), workers)

    assert line == f"training 'digits' on {words}: batch 4, 3 steps an epoch"


@pytest.mark.parametrize(
    ("samples", "rest"),
    [
        (6, "the last epoch of each pass has the 1 that are left, as in Keras; a dataset that "),
        (8, "the next epoch goes on in the pass, as in Keras"),
    ],
    ids=["shorter last epoch", "epochs of one length"],
)
def test_epochs_that_are_less_than_a_pass_are_explained(
    training: Training, samples: int, rest: str
) -> None:
    job = job_of(training(FitCall(X[:samples], X[:samples], 2, steps_per_epoch=2)))

    words = _cut_in_words(job)

    begin = f"a pass over the data has {samples // 2} steps, and an epoch 2: "
    assert words.startswith(begin + rest)
    assert job.work_plan.cuts_passes


def test_training_that_fails_gives_the_optimizer_and_private_files_back(training: Training) -> None:
    given_back: list[str] = []

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    made = training(FitCall(X, X))
    made._stages.train = fail
    made._rate = SimpleNamespace(take_off=lambda: given_back.append("rate"))
    made._callbacks = SimpleNamespace(close=lambda: given_back.append("files"))

    with pytest.raises(ZeroDivisionError):
        made.run()

    assert given_back == ["rate", "files"]


SCALE = RateScale("linear", 5, 4)

FACTORS = [1.0, 2.0, 3.0, 4.0, 5.0, 5.0]


def moved(optimizer: Any, updates: int) -> list[float]:
    """Return how far each update with a gradient of 1 has moved a variable."""
    import tensorflow as tf

    variable = keras.Variable([0.0])
    optimizer.build([variable])
    places = [0.0]
    apply = tf.function(lambda: optimizer.apply([tf.ones(1)], [variable]))
    for _ in range(updates):
        apply()
        places.append(float(np.asarray(variable)[0]))
    return [before - after for before, after in itertools.pairwise(places)]


def test_rate_of_a_variable_is_scaled_in_updates_only() -> None:
    optimizer = keras.optimizers.SGD(0.5)
    scaled = ScaledRate(optimizer, SCALE)

    assert moved(optimizer, 6) == pytest.approx([0.5 * factor for factor in FACTORS])
    assert float(optimizer.learning_rate) == 0.5
    optimizer.learning_rate = 0.25  # as a callback does
    assert float(optimizer.learning_rate) == 0.25
    scaled.take_off()
    assert "apply" not in vars(optimizer)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_schedule_goes_on_beneath_the_scale_also_within_mixed_precision(*, is_mixed: bool) -> None:
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [1.0, 0.1])
    optimizer = keras.optimizers.SGD(schedule)
    ScaledRate(keras.optimizers.LossScaleOptimizer(optimizer) if is_mixed else optimizer, SCALE)

    rates = [1.0, 1.0, 1.0, 0.1, 0.1, 0.1]
    expected = [rate * factor for rate, factor in zip(rates, FACTORS, strict=True)]
    assert moved(optimizer, 6) == pytest.approx(expected, rel=1e-5)


ONES = np.ones((4, 2), "float32")

NO_EPOCHS: list[dict[str, Any]] = [
    {"epochs": 0},
    {"epochs": 2, "initial_epoch": 2},
    {"epochs": 2, "initial_epoch": 5},
]


@pytest.mark.parametrize("asked", NO_EPOCHS)
def test_history_is_that_of_keras(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]) -> None:
    told: list[str] = []
    context = SimpleNamespace(notify=told.append)
    monkeypatch.setattr(keras_fit, "stages_of_script", lambda: SimpleNamespace(context=context))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    before = model.get_weights()
    kerass = model.fit(ONES, ONES[:, :1], verbose=0, **asked)

    ours = keras_fit.fit(model, FitCall(ONES, ONES[:, :1], **asked))

    assert (ours.history, ours.epoch) == (kerass.history, kerass.epoch) == ({}, [])
    assert ours.params["epochs"] == kerass.params["epochs"]
    assert model.history is ours
    assert ours.model is model
    assert all(map(np.array_equal, before, model.get_weights()))
    assert "trains nothing" in told[0]


_PLAIN = file_utils.get_file


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lock file; ``get_file`` is Keras's own again after the test."""
    for module in (keras.utils, file_utils, mnist):
        monkeypatch.setattr(module, "get_file", _PLAIN)
    monkeypatch.setattr(file_utils, "urlretrieve", file_utils.urlretrieve)
    lock = tmp_path / "lock"
    lock.touch()
    return lock


def _is_free(lock: Path) -> bool:
    with lock.open("r+") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file to be downloaded."""
    source = tmp_path / "numbers.bin"
    source.write_bytes(bytes(range(256)))
    return source


def test_nobody_else_has_the_turn_during_a_download(
    lock: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free: list[bool] = []
    told: list[str] = []
    plain = file_utils.urlretrieve

    def retrieve(*args: Any, **arguments: Any) -> Any:
        free.append(_is_free(lock))
        return plain(*args, **arguments)

    monkeypatch.setattr(file_utils, "urlretrieve", retrieve)
    take_turns(lock, told.append)
    assert mnist.get_file is keras.utils.get_file is file_utils.get_file  # type: ignore[attr-defined]

    path = keras.utils.get_file(origin=source.as_uri(), cache_dir=tmp_path)
    again = keras.utils.get_file(origin=source.as_uri(), cache_dir=tmp_path)

    assert free == [False]
    assert _is_free(lock)
    assert again == path
    assert Path(path).read_bytes() == source.read_bytes()
    assert told == [f"one worker downloads {source.as_uri()}, the others wait for it"]


def test_turn_ends_with_an_error(lock: Path, source: Path, tmp_path: Path) -> None:
    take_turns(lock, lambda text: None)
    wrong = hashlib.sha256(b"other bytes").hexdigest()

    with pytest.raises(ValueError, match="corrupted"):
        keras.utils.get_file(origin=source.as_uri(), cache_dir=tmp_path, file_hash=wrong)

    assert _is_free(lock)


def test_file_system_without_locks_downloads_as_plain_keras_does(
    lock: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    take_turns(lock, lambda text: None)
    before = len(os.listdir("/proc/self/fd"))

    path = keras.utils.get_file(origin=source.as_uri(), cache_dir=tmp_path)

    assert Path(path).read_bytes() == source.read_bytes()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("error", "microbatches", "is_told"),
    [
        (ValueError("cannot reshape"), 4, True),
        (ValueError("cannot reshape"), 1, False),
        (ProgramError("no"), 4, False),
        (None, 4, False),
    ],
    ids=["of the model", "on a whole batch", "a refusal", "none"],
)
def test_error_of_the_model_on_a_part_is_told_with_the_way_that_works(
    error: Exception | None, microbatches: int, *, is_told: bool
) -> None:
    lines: list[str] = []

    def build() -> None:
        with advice_on_parts(8, microbatches, "pairs", lines.append):
            if error is not None:
                raise error

    with contextlib.nullcontext() if error is None else pytest.raises(type(error)):
        build()

    assert lines == is_told * [
        "'pairs' was tried on 8 of the samples of a batch, which is divided into 4 microbatches "
        "along its first axis: if it needs the whole batch, run with --microbatches 1"
    ]


@pytest.mark.parametrize(
    ("samples", "microbatches", "idle"),
    [
        (8, 4, None),
        (4, 4, None),
        (3, 4, "1 of 4"),
        (1, 4, "3 of 4"),
        (9, 16, "1 of 4"),
        (13, 16, None),
    ],
)
def test_workers_that_small_batches_leave_without_a_sample_are_counted(
    training: Training, samples: int, microbatches: int, idle: str | None
) -> None:
    """Nobody counts the samples of a pipeline."""
    config = worker_config(workers=range(5), capacity=4)
    of_arrays = training(FitCall(X, X, samples), microbatches=microbatches)
    of_pipeline = training(FitCall(pipeline()), microbatches=microbatches)

    advice = advice_on_few_samples(job_of(of_arrays), config)

    assert advice_on_few_samples(job_of(of_pipeline), config) is None
    assert advice == (
        idle
        and f"batch_size {samples} in {microbatches} microbatches leaves {idle} workers without a "
        f"sample: take batches of {microbatches} or more"
    )
