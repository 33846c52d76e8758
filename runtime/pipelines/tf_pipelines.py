"""The source of what a script gives to ``fit``: one place that knows all kinds of pipelines."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.pipelines.generator_source import (
    ListSource,
    generator_source,
    validation_source,
)
from holdfast.runtime.pipelines.py_dataset_source import Passes, py_dataset_source
from holdfast.runtime.pipelines.source import Source, first_batches
from holdfast.runtime.pipelines.tf_source import dataset_source


def is_pipeline(x: object) -> bool:
    """Return whether ``x`` gives batches, and not samples."""
    return isinstance(x, (tf.data.Dataset, keras.utils.PyDataset, types.GeneratorType))


def source_of(
    x: Any, seed: int, *, passes: Passes, steps: int | None, tell: Callable[[str], None]
) -> Source:
    """Return the source of a pipeline that ``fit`` was given.

    Args:
        x: a ``tf.data.Dataset``, a ``PyDataset`` or a generator.
        seed: the run's.
        passes: what is read from it, for the order and the hooks of a PyDataset.
        steps: batches to take each time, None for a whole pass.
        tell: shows one line to the user.

    Raises:
        ProgramError: it is no pipeline, or it has no batches.
    """
    if passes is Passes.VALIDATION and steps is not None:
        if isinstance(x, types.GeneratorType):
            return validation_source(x, steps)
        source = _source_of(x, seed, passes, steps, tell)
        return first_batches(source, steps) if source.is_endless else source
    return _source_of(x, seed, passes, steps, tell)


def _source_of(
    x: Any, seed: int, passes: Passes, steps: int | None, tell: Callable[[str], None]
) -> Source:
    if isinstance(x, keras.utils.PyDataset):
        return py_dataset_source(x, seed, passes, steps)
    if isinstance(x, types.GeneratorType):
        return _finite(x) if steps is None else generator_source(x)
    if not isinstance(x, tf.data.Dataset):
        raise ProgramError(
            f"fit(x=...) is a {type(x).__name__}: give arrays, a tf.data.Dataset, a "
            "keras.utils.PyDataset or a generator"
        )
    source = dataset_source(x, seed, steps)
    if source.batches is None and not source.is_endless and steps is None:
        return _counted(x, source, seed, tell)
    return source


def _finite(generator: Any) -> Source:
    source = ListSource(generator)
    if not source.batches:
        raise ProgramError("the generator gave no batch: it has ended already, or is empty")
    return source


def _counted(dataset: Any, source: Source, seed: int, tell: Callable[[str], None]) -> Source:
    """Return the source of a dataset whose batches had to be counted by one pass."""
    batches = sum(1 for _ in source.open(0, 0)[1])
    if not batches:
        raise ProgramError(f"{source.name} gave no batch")
    tell(
        f"{source.name} does not know its number of batches: one pass has counted {batches}; "
        f".apply(tf.data.experimental.assert_cardinality({batches})) saves this pass"
    )
    known = dataset.apply(tf.data.experimental.assert_cardinality(batches))
    return dataset_source(known, seed, batches)
