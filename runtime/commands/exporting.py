"""A verified state in other formats: NumPy's, and those of Keras through the user's model.

A Keras model writes itself, so the user's script loads TensorFlow; this file never does.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np

from holdfast.checkpoint.format.layout import TensorSpec
from holdfast.checkpoint.format.tensor import Tensor
from holdfast.checkpoint.store.reader import Restored, compare_specs
from holdfast.runtime.commands.model_source import ModelSource
from holdfast.runtime.commands.publishing import publish
from holdfast.runtime.errors import UsageError
from holdfast.runtime.model.named_variables import model_variables
from holdfast.runtime.run.run_directory import RunRecord
from holdfast.runtime.training.stage import stage_of


class ExportFormat(str, Enum):
    """The formats that can be written; the values are those of ``--format``."""

    NPZ = "npz"
    WEIGHTS = "weights"
    KERAS = "keras"
    SAVEDMODEL = "savedmodel"


_SUFFIXES = {
    ".npz": ExportFormat.NPZ,
    ".weights.h5": ExportFormat.WEIGHTS,
    ".keras": ExportFormat.KERAS,
}
_CURSOR, _COMPANION, _OPTIMIZER = "cursor/", "companion/", "optimizer/"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """The file to write and its format; all formats but npz need the user's model."""

    target: Path
    format: ExportFormat
    model: ModelSource | None
    is_forced: bool

    def __post_init__(self) -> None:
        """Refuse a wrong request before anything is read."""
        if self.format is not ExportFormat.NPZ and self.model is None:
            raise UsageError(
                f"the format {self.format.value} needs your model; "
                "give the script that trained it, or a function in it: --model script.py:function"
            )
        wanted = [suffix for suffix, kind in _SUFFIXES.items() if kind is self.format]
        if wanted and not self.target.name.endswith(wanted[0]):
            raise UsageError(f"{self.target} must end in {wanted[0]}; choose another --to")


def format_of(target: Path, wanted: str | None) -> ExportFormat:
    """Return the format ``wanted``, or the one that the name of ``target`` stands for.

    Raises:
        UsageError: the name stands for no format.
    """
    if wanted is not None:
        return ExportFormat(wanted)
    for suffix, kind in _SUFFIXES.items():
        if target.name.endswith(suffix):
            return kind
    if target.suffix:
        raise UsageError(
            f"{target} has a name of no known format; end it in {', '.join(_SUFFIXES)} or, "
            "for a SavedModel's directory, in no suffix, or give --format"
        )
    return ExportFormat.SAVEDMODEL


def export_state(
    restored: Restored, request: ExportRequest, record: RunRecord | None = None
) -> None:
    """Write a verified state; ``record`` is that of its run.

    Raises:
        UsageError: the target cannot be written, or the model is another one.
        ProgramError: the user's model fails.
    """
    if request.model is None or request.format is ExportFormat.NPZ:
        publish(
            request.target,
            lambda draft: _write_npz(draft, restored.state),
            is_forced=request.is_forced,
        )
        return
    model = request.model.build(stage_of(restored.manifest.cursor), record)
    load_into(model, restored)
    publish(
        request.target,
        lambda draft: _write_model(model, draft, request.format),
        is_forced=request.is_forced,
    )


def load_into(model: Any, restored: Restored) -> None:
    """Assign a state to a built Keras model, and to its optimizer if it is compiled.

    Raises:
        UsageError: the tensors are those of another model; the message names them.
    """
    variables = model_variables(model)
    ignored: tuple[str, ...] = (_CURSOR, _COMPANION)
    if not getattr(model, "optimizer", None):
        ignored += (_OPTIMIZER,)
    found = [spec for spec in restored.manifest.specs if not spec.name.startswith(ignored)]
    expected = [TensorSpec(n, str(v.dtype), tuple(v.shape)) for n, v in variables.items()]
    difference = compare_specs(expected, found)
    if difference is not None:
        raise UsageError(
            f"checkpoint step {restored.manifest.step} is of another model: {difference}; "
            "name the function that made the model of this run"
        )
    for name, variable in variables.items():
        variable.assign(restored.state[name])


def _write_npz(draft: Path, state: dict[str, Tensor]) -> None:
    """Write a file for ``numpy.load``; unlike ``numpy.savez`` this takes most names."""
    for name in state:
        _refuse_way_out(name)
    with zipfile.ZipFile(draft, "x", zipfile.ZIP_STORED) as archive:
        for name, tensor in state.items():
            with archive.open(_member(name), "w", force_zip64=True) as file:
                np.lib.format.write_array(file, _plain(tensor), allow_pickle=False)


def _member(name: str) -> str:
    return f"{name}.npy"


def _refuse_way_out(name: str) -> None:
    """Refuse a name that leads out of the folder in which the archive is unpacked."""
    # Windows knows both slashes, and the archive may be unpacked there.
    path = PureWindowsPath(_member(name))
    if path.root or ".." in path.parts:
        raise UsageError(
            f"tensor {name!r} cannot be the name of a file in an archive: it leads out of the "
            "folder that the archive is unpacked in; export another format"
        )


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor as NumPy alone can read it: narrow floats as float32, exactly."""
    return tensor.astype(np.float32) if tensor.dtype.kind == "V" else tensor


def _write_model(model: Any, draft: Path, kind: ExportFormat) -> None:
    if kind is ExportFormat.WEIGHTS:
        model.save_weights(draft)
    elif kind is ExportFormat.KERAS:
        model.save(draft)
    else:
        model.export(str(draft), format="tf_saved_model", verbose=False)
