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
    whole_source,
)
from holdfast.runtime.pipelines.py_dataset_source import Passes, py_dataset_source
from holdfast.runtime.pipelines.source import Source, first_batches
from holdfast.runtime.pipelines.tf_source import dataset_source

_TOLD = 1024
"""Batches of a dataset without a known number that are counted before it is told.

A single epoch needs no more: its end is seen when it comes.
"""

_MOST_COUNTED = 1_000_000
"""Batches after which a dataset is taken for endless, if several epochs are asked for."""


def is_pipeline(x: object) -> bool:
    """Return whether ``x`` gives batches, and not samples."""
    return isinstance(x, (tf.data.Dataset, keras.utils.PyDataset, types.GeneratorType))


def source_of(
    x: Any,
    seed: int,
    *,
    passes: Passes,
    steps: int | None,
    tell: Callable[[str], None],
    is_once: bool = False,
) -> Source:
    """Return the source of a pipeline that ``fit`` was given.

    Args:
        x: a ``tf.data.Dataset``, a ``PyDataset`` or a generator.
        seed: the run's.
        passes: what is read from it, for the order and the hooks of a PyDataset.
        steps: batches to take each time, None for a whole pass.
        tell: shows one line to the user.
        is_once: whether one pass is wanted only.

    Raises:
        ProgramError: it is no pipeline, or it has no batches.
    """
    if passes is Passes.VALIDATION and steps is not None:
        if isinstance(x, types.GeneratorType):
            return validation_source(x, steps)
        source = _source_of(x, seed, (passes, steps), tell, is_once=False)
        return first_batches(source, steps) if source.is_endless else source
    return _source_of(x, seed, (passes, steps), tell, is_once=is_once)


def _source_of(
    x: Any,
    seed: int,
    wanted: tuple[Passes, int | None],
    tell: Callable[[str], None],
    *,
    is_once: bool,
) -> Source:
    passes, steps = wanted
    if isinstance(x, keras.utils.PyDataset):
        return py_dataset_source(x, seed, passes, steps)
    if isinstance(x, types.GeneratorType):
        if steps is not None:
            return generator_source(x)
        return _finite(ListSource(x) if passes is Passes.VALIDATION else whole_source(x))
    if not isinstance(x, tf.data.Dataset):
        raise ProgramError(
            f"fit(x=...) is a {type(x).__name__}: give arrays, a tf.data.Dataset, a "
            "keras.utils.PyDataset or a generator"
        )
    source = dataset_source(x, seed, steps)
    is_known = source.batches is not None or source.is_endless or source.repeats
    if not is_known and steps is None:
        return _counted(x, source, seed, tell, is_once=is_once)
    return source


def _finite(source: Source) -> Source:
    if source.batches == 0:
        raise ProgramError("the generator gave no batch: it has ended already, or is empty")
    return source


def _counted(
    dataset: Any, source: Source, seed: int, tell: Callable[[str], None], *, is_once: bool
) -> Source:
    """Return the source of a dataset whose batches have to be counted by one pass.

    One that goes on and on is read as it is: its first epoch ends with it, or with a callback.
    """
    batches = 0
    for batches, _ in enumerate(source.open(0, 0)[1], start=1):
        if batches == (_TOLD if is_once else _MOST_COUNTED):
            return dataset_source(dataset, seed, batches)
        if batches == _TOLD:
            tell(
                f"{source.name} does not know its number of batches: there are more than {batches},"
                f" and they are counted up to {_MOST_COUNTED:,} before the training begins; "
                "steps_per_epoch saves this"
            )
    if not batches:
        raise ProgramError(f"{source.name} gave no batch")
    tell(
        f"{source.name} does not know its number of batches: one pass has counted {batches}; "
        f".apply(tf.data.experimental.assert_cardinality({batches})) saves this pass"
    )
    known = dataset.apply(tf.data.experimental.assert_cardinality(batches))
    return dataset_source(known, seed, batches)
