"""The weights that a new run begins with, if the user gives other ones than the model's own.

Only weights are taken: the optimizer's state, with its count of updates and its
learning rate, begins anew.  The source must set every weight of the model.  If some are
missing, an error names them, and training does not begin on a mixture of weights.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.errors import TRANSIENT, StorageFailed
from holdfast.checkpoint.reader import compare_specs, restore_newest
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensors, specs_of
from holdfast.runtime.errors import RunUnreadable, UsageError
from holdfast.runtime.model.model_rules import some_of
from holdfast.runtime.model.replica import Replica

_KERAS_SUFFIXES = (".weights.h5", ".keras")
_NOT_WEIGHTS = ("cursor/", "optimizer/")
_NEWEST_OF_TENSORFLOW = "checkpoint"
"""The file in which TensorFlow notes which of a directory's checkpoints is the newest."""

_UNREADABLE = (OSError, EOFError, zipfile.BadZipFile)
"""Errors of a file that is cut short or of another kind; other errors come from the model."""


def load_initial_weights(replica: Replica, path: Path) -> None:
    """Set the weights of a replica from a file, or from the newest checkpoint of another run.

    Raises:
        UsageError: there is no such file, or it holds another model's weights.
        RunUnreadable: the checkpoint of another run cannot be read just now.
    """
    if path.is_dir() and not (path / _NEWEST_OF_TENSORFLOW).is_file():
        _take(replica, _of_run(path), path)
    elif path.suffix == ".npz" and not path.is_dir():
        _take(replica, _of_archive(path), path)
    elif path.name.endswith(_KERAS_SUFFIXES) and not path.is_dir():
        _refuse_missing(path)
        _fill(replica, path, lambda model: model.load_weights(path))
    else:
        _refuse_missing(path if path.is_dir() else path.with_name(f"{path.name}.index"))
        _fill(replica, path, lambda model: _read_tensorflow(model, path))


def _refuse_missing(path: Path) -> None:
    if not path.exists():
        raise UsageError(
            f"{path} does not exist; begin with a .weights.h5, .keras or .npz file, the prefix "
            "or directory of a TensorFlow checkpoint, or another run's directory"
        )


def is_weight(name: str) -> bool:
    """Return whether a tensor of a state is a weight, not the optimizer's or the cursor's."""
    return not name.startswith(_NOT_WEIGHTS)


def _of_run(path: Path) -> Tensors:
    try:
        restored, rejections = restore_newest(CheckpointStore(path))
    except StorageFailed as error:
        kind = RunUnreadable if error.errno in TRANSIENT else UsageError
        raise kind(f"{path} cannot give the first weights: {error}") from error
    for unread in (found for found in rejections if found.is_unread):
        raise RunUnreadable(  # an older step has other weights, and nobody asked for them
            f"{path} cannot give the first weights: its checkpoint step {unread.step} could "
            f"not be read: {unread.reason}; it is not known to be damaged: run again"
        )
    if restored is None:
        reasons = "; ".join(rejection.reason for rejection in rejections) or "there is none"
        raise UsageError(
            f"{path} has no valid checkpoint to take the first weights from: {reasons}"
        )
    return restored.state


def _of_archive(path: Path) -> Tensors:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"{path} cannot be read as the weights to begin with: {reason}") from error


def _take(replica: Replica, found: Tensors, source: Path) -> None:
    """Take weights by their names; any replica can do that."""
    state = dict(replica.state())
    given = {name: value for name, value in found.items() if is_weight(name)}
    wanted = {name: value for name, value in state.items() if is_weight(name)}
    difference = compare_specs(specs_of(wanted), specs_of(given))
    if difference is not None:
        raise UsageError(f"{source} holds another model's weights: {difference}; choose another")
    replica.load(state | given)


def _fill(replica: Replica, source: Path, read: Callable[[Any], None]) -> None:
    """Let Keras or TensorFlow set the weights; raise ``UsageError`` if some were not set."""
    model = getattr(replica, "model", None)
    if model is None:
        raise UsageError(f"{source} can only begin a Keras model; begin with a .npz file instead")
    before = {name: np.array(value) for name, value in replica.state().items()}
    replica.load({name: _marked(name, value) for name, value in before.items()})
    complaint = "the file does not hold them"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the optimizer's state, which is not taken
            read(model)
    except Exception as error:  # both libraries raise errors of any type
        complaint = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        if isinstance(error, _UNREADABLE) or not _unset(replica):
            raise UsageError(f"{source} cannot be read: {complaint}") from error
    missing = [repr(name) for name in _unset(replica)]
    if missing:
        raise UsageError(
            f"{source} holds another model's weights: {some_of(missing, 5)} were not set "
            f"({complaint})"
        )
    after = replica.state()
    replica.load({n: after[n] if is_weight(n) else before[n] for n in before})


def _marked(name: str, value: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """Return NaN in place of weights, so that weights that were not set can be found."""
    if not is_weight(name) or value.dtype.kind not in "fV":
        return value
    return np.full(value.shape, np.nan, value.dtype)


def _unset(replica: Replica) -> list[str]:
    """Return the names of weights that still hold the NaN of ``_marked``."""
    return [
        name
        for name, value in replica.state().items()
        if is_weight(name)
        and value.dtype.kind in "fV"
        and value.size
        and bool(np.isnan(value.astype(np.float32)).all())
    ]


def _read_tensorflow(model: Any, path: Path) -> None:
    """Set the variables of a Keras model that a checkpoint holds.

    The model may have been saved as ``model=…`` or as the root itself.  ``path`` is the
    prefix of a checkpoint, or a directory, whose newest checkpoint is read.  Variables that
    the checkpoint lacks stay as they are, without a warning.

    Raises:
        OSError: there is no whole checkpoint.
    """
    import tensorflow as tf  # it takes seconds, and most weights need it not

    try:
        prefix = tf.train.latest_checkpoint(str(path)) if path.is_dir() else str(path)
        if prefix is None:
            raise OSError(f"the newest checkpoint that {path} names is not there")
        names = [name for name, _ in tf.train.list_variables(prefix)]
        is_named = any(name.startswith("model/") for name in names)
        root = tf.train.Checkpoint(model=model) if is_named else tf.train.Checkpoint(model)
        root.read(prefix).expect_partial()
    except tf.errors.InvalidArgumentError:  # for example a dtype: another model's checkpoint
        raise
    except (tf.errors.OpError, IndexError) as error:  # IndexError: the data are cut short
        raise OSError(str(error)) from error
