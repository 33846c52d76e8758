"""``holdfast export``: a verified state as a file of NumPy, or as the user's model writes it.

A Keras model writes itself, so the user's script loads TensorFlow; this file never does.  The
script is run up to its training, ``fit`` or a trainer, which refuses to train.  The model is the
result of a function of the script, or the training's model.  In both cases the data of the training
tell the shape of an input, if the model does not know it.

The file appears whole under its name, or not at all.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sys
import tempfile
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

import click
import numpy as np

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.reader import Restored, compare_specs, restore
from holdfast.checkpoint.tensor import Tensor, TensorSpec
from holdfast.runtime.commands.checkpoints import StoredRun
from holdfast.runtime.commands.command import PATH, Documented, run_dir_argument
from holdfast.runtime.errors import JobError, ProgramError, UsageError
from holdfast.runtime.model.model_rules import model_variables
from holdfast.runtime.model.replica import make_model
from holdfast.runtime.run.files import sync, sync_names
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord
from holdfast.runtime.script.calls import seed_script
from holdfast.runtime.training.training_job import stage_of
from holdfast.runtime.worker.context import Refusal, TrainingRefused

_MODULE_NAME = "holdfast_model"
"""Not ``__main__``: with a function to call, the code behind that guard must not run."""

_FORMATS = _NPZ, _WEIGHTS, _ = ".npz", ".weights.h5", ".keras"
_CURSOR, _COMPANION, _OPTIMIZER = "cursor/", "companion/", "optimizer/"
_WITHOUT_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""What a file system answers that has no hard links, such as FAT."""


@click.command(
    cls=Documented,
    examples=(
        "export --to weights.npz",
        "export holdfast-train --to model.keras --model train.py",
    ),
)
@run_dir_argument
@click.option(
    "--to",
    "target",
    type=PATH,
    required=True,
    help="FILE.npz, FILE.weights.h5 or FILE.keras.",
)
@click.option("--step", type=int, help="The step to export.  [default: the newest]")
@click.option("--model", metavar="SCRIPT[:FUNCTION]", help="Source of your model; not for npz.")
@click.option(
    "--input-shape", metavar="SIZES", help="Shape of one sample, as in 28,28,1, if needed."
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def export(
    run_dir: Path,
    target: Path,
    step: int | None,
    *,
    force: bool,
    **model: str | None,
) -> None:
    """Write a verified checkpoint in RUN_DIR as a file for NumPy or Keras."""
    source = _source(model["model"], model["input_shape"])
    refuse_format(target, source)
    refuse_existing(target, is_forced=force)
    run = StoredRun.open(run_dir)
    restored = restore(run.store, run.step(step), run_id=run.run_id)
    record = RunDirectory(run_dir).load_record()
    export_state(restored, target, source, record, is_forced=force)
    click.echo(f"step {restored.manifest.step}, verified, is now {target}")


def _source(text: str | None, sizes: str | None) -> ModelSource | None:
    """Return the source that ``script.py:function`` or ``script.py`` names, with its input."""
    if text is None:
        return None
    try:
        shape = None if sizes is None else tuple(int(size) for size in sizes.split(",") if size)
    except ValueError as error:
        raise UsageError(f"--input-shape is {sizes!r}; give sizes, as in 28,28,1") from error
    script, colon, function = text.rpartition(":")
    if not colon:
        script, function = text, ""
    elif not function.isidentifier():
        raise UsageError(f"--model is {text!r}; give it as script.py:function")
    if not Path(script).is_file():
        raise UsageError(f"{script} does not exist; give --model as script.py:function")
    return ModelSource(Path(script), function or None, shape)


def export_state(
    restored: Restored,
    target: Path,
    model: ModelSource | None,
    record: RunRecord | None = None,
    *,
    is_forced: bool = False,
) -> None:
    """Write a verified state, in the format of the target's name; ``record`` is that of its run.

    Raises:
        UsageError: the target cannot be written, or the model is another one.
        ProgramError: the user's model fails.
    """
    if model is None or target.name.endswith(_NPZ):
        write = functools.partial(_write_npz, restored.state)
    else:
        made = model.build(stage_of(restored.manifest.cursor), record)
        load_into(made, restored)
        write = made.save_weights if target.name.endswith(_WEIGHTS) else made.save
    publish(target, write, is_forced=is_forced)


def refuse_format(target: Path, model: ModelSource | None) -> None:
    """Raise ``UsageError`` if a name stands for no format, or for one that needs the model."""
    kind = next((kind for kind in _FORMATS if target.name.endswith(kind)), None)
    if kind is None:
        raise UsageError(
            f"{target} has a name of no known format; end it in .npz, .weights.h5 or .keras (a "
            "script that loads a .keras file makes a SavedModel of it: model.export(DIRECTORY))"
        )
    if kind != _NPZ and model is None:
        raise UsageError(
            f"a {kind} file needs your model; "
            "give the script that trained it, or a function in it: --model script.py:function"
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


def _write_npz(state: dict[str, Tensor], draft: Path) -> None:
    """Write a file for ``numpy.load``; unlike ``numpy.savez`` this takes most names."""
    for name in state:
        # Windows knows both slashes, and the archive may be unpacked there.
        path = PureWindowsPath(f"{name}.npy")
        if path.root or ".." in path.parts:
            raise UsageError(
                f"tensor {name!r} cannot be the name of a file in an archive: it leads out of the "
                "folder that the archive is unpacked in; export another format"
            )
    with zipfile.ZipFile(draft, "x", zipfile.ZIP_STORED) as archive:
        others = (_OPTIMIZER, _CURSOR, _COMPANION)
        for name, tensor in sorted(state.items(), key=lambda item: item[0].startswith(others)):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                # NumPy alone cannot read narrow floats; float32 holds them exactly.
                plain = tensor.astype(np.float32) if tensor.dtype.kind == "V" else tensor
                np.lib.format.write_array(file, plain, allow_pickle=False)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A script, the function in it that makes the model, and the shape of one sample.

    Without a function the model is the training's.
    """

    script: Path
    function: str | None = None
    input_shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return str(self.script) if self.function is None else f"{self.script}:{self.function}"

    def build(self, stage: int = 1, record: RunRecord | None = None) -> Any:
        """Return the model, with all of its variables and its optimizer's.

        ``stage`` is the number of the training, from 1, for a script that trains several models.
        With the ``record`` of its run the script draws what it has drawn there.

        Raises:
            UsageError: the script has no such model, or nothing tells the shape of its input.
            ProgramError: the user's code fails.
        """
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        from holdfast.runtime.keras.script_setup import model_only  # it loads all that trains

        module = types.ModuleType("__main__" if self.function is None else _MODULE_NAME)
        module.__file__ = str(self.script.resolve())
        if record is not None:
            seed_script(record.seed, record.draw_seed or record.run_id, self.script.resolve())
        with _in_place_of(module), model_only(stage) as refusal:
            with _users_fault(str(self.script)), contextlib.suppress(TrainingRefused):
                exec(compile(self.script.read_bytes(), module.__file__, "exec"), vars(module))
            origin = self._origin(vars(module), refusal)
            with _users_fault(str(self)):
                model = make_model(origin)
        if not hasattr(model, "trainable_variables"):
            raise UsageError(
                f"{self} makes a {type(model).__name__}, which is no Keras model; "
                "name a function that returns one, or export to .npz"
            )
        self._build_variables(model, refusal.first_inputs)
        return model

    def _origin(self, namespace: Mapping[str, Any], refusal: Refusal) -> Any:
        if self.function is not None:
            function = namespace.get(self.function)
            if not callable(function):
                raise UsageError(f"{self.script} has no function {self.function}; name another one")
            return function
        if refusal.first_inputs is None:
            raise UsageError(
                f"{self.script} does not come to model.fit() or to a Trainer's run(); "
                "give the function that makes the model, as --model script.py:function"
            )
        return refusal.model

    def _build_variables(self, model: Any, first_inputs: Callable[[], Any] | None) -> None:
        if not model.built and self.input_shape is None and first_inputs is None:
            raise UsageError(
                f"the model of {self} does not know the shape of its input; "
                "give that of one sample, as in --input-shape 28,28,1"
            )
        with _users_fault(f"building the model of {self}"):
            if not model.built and self.input_shape is not None:
                model.build((None, *self.input_shape))
            elif not model.built and first_inputs is not None:
                model(first_inputs())
            optimizer = getattr(model, "optimizer", None)
            if optimizer is not None and not optimizer.built:
                optimizer.build(model.trainable_variables)


@contextlib.contextmanager
def _in_place_of(module: types.ModuleType) -> Iterator[None]:
    """Let a script find itself, its neighbours and no arguments, as if started by Python."""
    script = str(module.__file__)
    argv, before = sys.argv, sys.modules.get(module.__name__)
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        sys.argv = argv
        if before is not None:
            sys.modules[module.__name__] = before


@contextlib.contextmanager
def _users_fault(doing: str) -> Iterator[None]:
    """Turn any error of the user's code into one sentence that ends the command."""
    try:
        yield
    except JobError:
        raise
    except TrainingRefused as error:  # a function that trains, and not the script
        raise ProgramError(f"{doing}: {error}") from error
    except SystemExit as error:
        raise ProgramError(f"{doing} ended the program with exit code {error.code}") from error
    except Exception as error:
        raise ProgramError(f"{doing} raised {type(error).__name__}: {error}") from error


def publish(target: Path, write: Callable[[Path], None], *, is_forced: bool) -> None:
    """Let ``write`` make a draft beside ``target``, make it durable, and rename it.

    The draft lies in a private folder on the target's file system.  Others may write to the
    target's directory.  They can neither guess the folder's name nor put a link into it, which the
    library that writes the draft would follow.

    Raises:
        UsageError: the target exists and may not be replaced, or cannot be written.
        ProgramError: ``write`` failed for another reason.
    """
    refuse_existing(target, is_forced=is_forced)
    try:
        with tempfile.TemporaryDirectory(
            prefix=".holdfast-export-", dir=target.parent, ignore_cleanup_errors=True
        ) as folder:
            draft = Path(folder) / target.name  # Keras looks at the suffix
            write(draft)
            sync(draft)
            if is_forced:
                draft.replace(target)
            else:
                _place(draft, target)
            sync_names(target.parent)
    except OSError as error:
        raise _unwritable(target, error.strerror or str(error)) from error
    except JobError:
        raise
    except Exception as error:
        raise ProgramError(
            f"{target} could not be made: {type(error).__name__}: {error}"
        ) from error


def refuse_existing(target: Path, *, is_forced: bool) -> None:
    """Raise ``UsageError`` if the target may not be written, before any work is done."""
    if not target.parent.is_dir():
        raise _unwritable(target, f"{target.parent} is not a directory")
    if not os.path.lexists(target):
        return
    if not is_forced:
        raise UsageError(f"{target} exists; choose another --to, or replace it with --force")
    if target.is_dir():
        raise UsageError(f"{target} is a directory; choose another --to")


def _place(draft: Path, target: Path) -> None:
    """Give the draft a name that nothing has, not even since a moment ago."""
    try:
        # On NFS a file's rename replaces what is there; a second name for it does not.
        os.link(draft, target)
    except OSError as error:
        if error.errno not in _WITHOUT_LINKS:
            raise
        FileSystem().rename_noreplace(draft, target)


def _unwritable(target: Path, reason: str) -> UsageError:
    return UsageError(f"{target} cannot be written: {reason}; choose another --to")
