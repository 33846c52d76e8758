"""A replica serves the next ``fit`` of its model, until Keras would make new graphs too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.replica import Microbatch

pytestmark = pytest.mark.tensorflow


def model_of(tf: SimpleNamespace) -> Any:
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((3,)), layers.Dense(2), layers.Dense(1)])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def microbatch(samples: int = 4, width: int = 3, weights: Any = None) -> Microbatch:
    x = np.arange(samples * width, dtype=np.float32).reshape(samples, width)
    return Microbatch(x, x[:, :1] * 2, 0, weights)


def kept(model: Any, first: Microbatch, told: list[str] | None = None) -> Any:
    from holdfast.runtime.model.choose import kept_replica

    tell = ([] if told is None else told).append
    return kept_replica(model, first, BatchMixing.REFUSED, tell)


def test_next_fit_has_the_same_replica_for_batches_of_any_size(tf: SimpleNamespace) -> None:
    model = model_of(tf)
    replica = kept(model, microbatch())
    model.optimizer.learning_rate = 0.01
    model.set_weights([weight * 0 for weight in model.get_weights()])

    model.layers[0].trainable = False  # Keras goes on with the graph that it has
    assert kept(model, microbatch(samples=7)) is replica
    assert kept(model_of(tf), microbatch()) is not replica


def compile_again(tf: SimpleNamespace, model: Any) -> None:
    model.compile(model.optimizer, "mae")


def give_a_schedule(tf: SimpleNamespace, model: Any) -> None:
    model.optimizer.learning_rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.9)


def look_again(tf: SimpleNamespace, model: Any) -> None:
    model.make_train_function(force=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (compile_again, []),
        (give_a_schedule, ["the schedule of the learning rate of "]),
        (look_again, []),
    ],
)
def test_changed_model_has_another_replica_and_what_keras_would_not_see_is_told(
    tf: SimpleNamespace, change: Callable[[SimpleNamespace, Any], None], words: list[str]
) -> None:
    model = model_of(tf)
    told: list[str] = []
    replica = kept(model, microbatch(), told)

    change(tf, model)

    assert kept(model, microbatch(), told) is not replica
    assert [line.partition("'")[0] for line in told] == words


def test_samples_with_weights_have_another_replica(tf: SimpleNamespace) -> None:
    model = model_of(tf)
    replica = kept(model, microbatch())

    assert kept(model, microbatch(weights=np.ones(4, np.float32))) is not replica


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kept_replica_is_no_part_of_a_copy_or_a_file(tf: SimpleNamespace, tmp_path: Any) -> None:
    model = model_of(tf)
    kept(model, microbatch())

    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    clone = tf.keras.models.clone_model(model)

    for other in (loaded, clone):
        assert not hasattr(other, "_holdfast_kept_replica")
