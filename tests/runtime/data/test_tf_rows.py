"""Pipelines of which each worker makes its own rows: those of the whole batch, byte for byte."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from local_communicator import LocalCommunicator
from tensorflow.python.framework.function import Defun

from holdfast.recovery.order import BatchOrder
from holdfast.runtime.data.batch import OwnRows, WholeBatch
from holdfast.runtime.data.feed import Feed
from holdfast.runtime.data.stream import BatchShare
from holdfast.runtime.data.tf_source import dataset_source
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.replica import leaves

pytestmark = pytest.mark.tensorflow

SAMPLES, SEED = 53, 7


def _scaled(x: Any, y: Any) -> Any:
    columns = np.arange(1, 4, dtype="float32")
    return (tf.cast(x, tf.float32) - 3.0) / columns, tf.one_hot(y, 3)


def _bent(x: Any, y: Any) -> Any:
    """Use what is rounded in another way at another place of an array."""
    return tf.exp(tf.cast(x, tf.float32) / 255.0), y


def _centred(x: Any, y: Any) -> Any:
    x = tf.cast(x, tf.float32)
    return x - tf.reduce_mean(x, axis=0), y


def _by_column(x: Any, y: Any) -> Any:
    """Broadcast a constant along the rows of a batch of 4."""
    return tf.cast(x, tf.float32) * np.arange(4, dtype="float32")[:, None], y


def _noisy(x: Any, y: Any) -> Any:
    return tf.cast(x, tf.float32) + tf.random.uniform([]), y


def _through_python(x: Any, y: Any) -> Any:
    return tf.numpy_function(lambda value: value, [x], x.dtype), y


def _arrays() -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    x = random.integers(0, 255, (SAMPLES, 3), dtype=np.uint8)
    return x, random.integers(3, size=SAMPLES)


def _slices(tf: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(_arrays())


def _named(tf: Any) -> Any:
    x, y = _arrays()
    words = np.array([f"word {number}" for number in range(SAMPLES)])
    return tf.data.Dataset.from_tensor_slices(({"x": x, "words": words}, y, y / 3.0))


def _of_words(tf: Any) -> Any:
    """Look each word up in a table, which is a resource of the graph."""
    words = [f"w{i % 7} w{i % 5}" for i in range(SAMPLES)]
    layer = tf.keras.layers.TextVectorization(max_tokens=9, output_sequence_length=3)
    layer.adapt(words)
    return tf.data.Dataset.from_tensor_slices(words).shuffle(9).map(layer, 4)


def _zipped(tf: Any) -> Any:
    slices = [tf.data.Dataset.from_tensor_slices(array) for array in _arrays()]
    return tf.data.Dataset.zip(tuple(slices))


def _with_variable(tf: Any) -> Any:
    factor = tf.Variable(2.0)
    return _slices(tf).map(lambda x, y: (tf.cast(x, tf.float32) * factor, y)).batch(4)


def _counted(tf: Any) -> Any:
    """Count the samples of each class in a table."""
    seen = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    def count(x: Any, y: Any) -> Any:
        before = seen.lookup(y)
        seen.insert(y, before + 1)
        return x, before

    return _slices(tf).map(count).batch(4)


def _with_one_of_others(tf: Any) -> Any:
    one = tf.data.Dataset.range(SAMPLES).shuffle(SAMPLES).take(1)
    return _slices(tf).map(lambda x, y: (x, one.get_single_element())).batch(4)


def _images(tf: Any) -> Any:
    """Decode what has any height and width, and give it one."""
    of = [tf.io.encode_png(np.full((2 + i % 3, 3, 3), i, np.uint8)).numpy() for i in range(SAMPLES)]
    images = tf.data.Dataset.from_tensor_slices(of).map(lambda one: tf.io.decode_png(one, 3))
    return images.map(lambda image: tf.image.resize(image, (2, 2))).batch(4)


def _by_name(tf: Any) -> Any:
    """Call a function whose name is an operation of the graph, as those of TensorFlow 1 are."""

    @Defun(tf.uint8)  # type: ignore[untyped-decorator]
    def twice(x: Any) -> Any:
        return x + x

    return _slices(tf).map(lambda x, y: (twice(x), y), 2).batch(4)


MADE_BY_ROWS: dict[str, Callable[[Any], Any]] = {
    "slices": lambda tf: _slices(tf).batch(4),
    "shuffled": lambda tf: _slices(tf).shuffle(20).batch(4).prefetch(2),
    "one order": lambda tf: (
        _slices(tf).shuffle(20, seed=3, reshuffle_each_iteration=False).batch(4)
    ),
    "shuffled twice": lambda tf: _slices(tf).shuffle(20).shuffle(9).batch(4, num_parallel_calls=2),
    "whole batches": lambda tf: _slices(tf).shuffle(99).batch(4, drop_remainder=True).map(_scaled),
    "some of them": lambda tf: (
        _slices(tf).skip(3).take(40).shard(2, 1).repeat(3).shuffle(9).batch(4).take(7)
    ),
    "mapped batches": lambda tf: _slices(tf).shuffle(20).batch(4).map(_scaled, 2).prefetch(1),
    "mapped elements": lambda tf: _slices(tf).map(_bent).shuffle(20).map(_scaled, 2).batch(4),
    "both": lambda tf: _slices(tf).shuffle(20).map(_bent).batch(4).map(_scaled),
    "repeated": lambda tf: _slices(tf).shuffle(20).batch(4).map(_scaled).repeat().prefetch(2),
    "names and weights": lambda tf: _named(tf).shuffle(20).batch(4),
    "words": lambda tf: _of_words(tf).batch(4),
    "images": _images,
    "with a dataset of its own": lambda tf: (
        _slices(tf).map(lambda x, _: tf.data.Dataset.from_tensors(x).get_single_element()).batch(4)
    ),
    "zipped": lambda tf: _zipped(tf).shuffle(20).batch(4),
}

READ_WHOLE: dict[str, Callable[[Any], Any]] = {
    "batches rounded by place": lambda tf: _slices(tf).batch(4).map(_bent),
    "batches with a mean": lambda tf: _slices(tf).batch(4).map(_centred),
    "batches of one size": lambda tf: _slices(tf).batch(4, drop_remainder=True).map(_by_column),
    "random": lambda tf: _slices(tf).map(_noisy).batch(4),
    "python": lambda tf: _slices(tf).map(_through_python).batch(4),
    "shuffled batches": lambda tf: _slices(tf).batch(4).shuffle(3),
    "cache": lambda tf: _slices(tf).cache().shuffle(20).batch(4),
    "filter": lambda tf: _slices(tf).filter(lambda x, y: y > 0).batch(4),
    "padded": lambda tf: _slices(tf).padded_batch(4),
    "interleave": lambda tf: (
        tf.data.Dataset.range(6).interleave(lambda i: tf.data.Dataset.range(i + 1)).batch(4)
    ),
    "generator": lambda tf: tf.data.Dataset.from_generator(
        lambda: iter([1.0, 2.0]), output_signature=tf.TensorSpec([], tf.float32)
    ).batch(2),
    "no end": lambda tf: _slices(tf).repeat().shuffle(20).batch(4),
    "a variable": _with_variable,
    "a table that is written": _counted,
    "a shuffled dataset in a function": _with_one_of_others,
    "elements of any shape": lambda tf: _slices(tf).map(lambda x, y: x[: 1 + y]).take(1).batch(4),
    "a function by its name": _by_name,
    "batches of complex numbers": lambda tf: (
        _slices(tf).batch(4).map(lambda x, y: tf.square(tf.cast(x, tf.complex64)))
    ),
}


def feed(dataset: Any) -> Feed:
    source = dataset_source(dataset, SEED)
    return Feed(source, source.batches or 5)


def share(microbatches: int, parts: Iterable[int]) -> BatchShare:
    return BatchShare(frozenset(parts), BatchOrder(SEED, 1, microbatches).bounds)


def same(
    batch: WholeBatch | OwnRows, whole: WholeBatch | OwnRows, ranges: list[tuple[int, int]]
) -> bool:
    """Return whether both batches have the same rows."""
    pairs = [(batch.rows(*rows), whole.rows(*rows)) for rows in ranges]
    found = [zip(leaves(mine), leaves(theirs), strict=True) for mine, theirs in pairs]
    return batch.samples == whole.samples and all(
        (a.dtype, a.shape, a.tolist()) == (b.dtype, b.shape, b.tolist())
        for pair in found
        for a, b in pair
    )


@pytest.mark.parametrize("name", MADE_BY_ROWS)
@pytest.mark.parametrize("microbatches", [1, 3])
def test_rows_are_those_of_the_whole_batch_through_changes_of_owners(
    name: str, microbatches: int
) -> None:
    """Steps over more than two passes; some are done again, with more parts, as after a death."""
    dataset = MADE_BY_ROWS[name](tf)
    alone, mine = feed(dataset), feed(dataset)
    random = np.random.default_rng(microbatches)
    parts = {0}
    steps = 2 * alone.steps + 3
    at = 0
    while at < steps:
        if random.random() < 0.2:
            parts = set(random.integers(microbatches, size=2).tolist())
            at = max(at - int(random.integers(2)), 0)
        owned = share(microbatches, parts)
        batch = mine.train_batch(at, LocalCommunicator(), share=owned)
        whole = alone.train_batch(at, LocalCommunicator())
        assert isinstance(batch, OwnRows)
        assert same(batch, whole, owned.ranges(whole.samples)), f"step {at}, parts {parts}"
        at += 1


def test_pass_whose_last_piece_has_no_row_of_a_worker_moves_no_rows_of_the_next() -> None:
    """Sixteen batches are a piece, and the last batch has one row."""
    dataset = _slices(tf).shuffle(20).take(49).batch(3)
    alone, mine, owned = feed(dataset), feed(dataset), share(2, {1})
    for at in range(2 * alone.steps):
        batch = mine.train_batch(at, LocalCommunicator(), share=owned)
        whole = alone.train_batch(at, LocalCommunicator())
        assert same(batch, whole, owned.ranges(whole.samples)), f"step {at}"


@pytest.mark.parametrize("name", READ_WHOLE)
def test_what_may_look_at_other_rows_or_draw_is_read_whole(name: str) -> None:
    mine = feed(READ_WHOLE[name](tf))
    batch = mine.train_batch(0, LocalCommunicator(), share=share(2, {1}))
    assert isinstance(batch, WholeBatch)
    assert mine.fingerprint() is None


def test_worker_without_a_part_reads_nothing_and_knows_the_samples() -> None:
    """Its thread would open pass after pass in vain; that of the share before ends."""
    mine, before = feed(_slices(tf).map(_bent).batch(4)), set(threading.enumerate())
    mine.train_batch(0, LocalCommunicator(), share=share(2, {0}))
    found = [mine.train_batch(step, LocalCommunicator(), share=share(2, ())) for step in range(14)]
    assert [batch.samples for batch in found] == [4] * 13 + [1]
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()


def test_other_samples_or_functions_have_another_fingerprint() -> None:
    x, y = _arrays()
    other = x.copy()
    other[-1, -1] ^= 1
    datasets = [_slices(tf), _slices(tf), tf.data.Dataset.from_tensor_slices((other, y))]
    one, same_one, changed = (feed(each.batch(4)).fingerprint() for each in datasets)
    assert one == same_one
    assert len({one, changed, feed(_slices(tf).batch(4).map(_scaled)).fingerprint()}) == 3


def test_run_that_has_read_whole_batches_goes_on_so_and_compares() -> None:
    """Its checkpoint has a mark of what it has read."""
    dataset = _slices(tf).shuffle(20).batch(4)
    before = feed(dataset)
    for step in range(3):
        before.train_batch(step, LocalCommunicator())
    after = feed(dataset)
    after.resume(before.mark)
    batch = after.train_batch(3, LocalCommunicator(), share=share(2, {1}))
    assert isinstance(batch, WholeBatch)
    assert after.mark is not None

    other = feed(_slices(tf).shuffle(21).batch(4))
    other.resume(before.mark)
    with pytest.raises(ProgramError, match="gave other samples when it was read again"):
        other.train_batch(3, LocalCommunicator(), share=share(2, {1}))
