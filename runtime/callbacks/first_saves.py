"""Models that callbacks and scripts save: each is written by one worker, for all.

Keras writes weights from C, which the guard of `callback_files` does not see.  So its own functions
to save and to load are exchanged once, when the script imports Keras.

* In a hook, a worker that is not the first puts the save off, with the weights of this
  moment.  They are tensors that TensorFlow copies at the next update, which comes after the
  agreement that drops them.  A hook of the same round that loads the path has them written
  into a private folder first.  In a later round the first worker's file is there.
* In the script itself there is no agreement.  Whoever comes first to a save makes it, and the
  others wait meanwhile (`SharedWrites`).  So a script finds what it has saved, by any way: in C,
  in a list of the folder, or in a program that it starts.

A script may load the best weights of one ``fit``, and let the next one save its own to the same
file.  A relaunch in that one runs the script from its first line: it would load what the next
``fit`` has written.  So the first worker copies a file that the script has loaded, before the run
writes it again.  The same load of a later launch gets the copy.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.runtime.callbacks.callback_files import FirstFiles
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.context import is_forked


class SharedWrites:
    """What libraries write for the script of one process, each time by one worker of a launch.

    All workers make the same calls.  The n-th write of a path at a moment is made by the worker
    that comes to it first, and the others find it complete.  If it dies, the next one writes.

    Args:
        record: that of the run.
        moment: names the launch, and the trainings between which the script is.
    """

    def __init__(self, record: ScriptRecord, moment: Callable[[], str]) -> None:
        self._record = record
        self._moment = moment
        self._counts: Counter[str] = Counter()
        self._is_writing = False

    def once(
        self, path: str, write: Callable[[], Any], rest: Callable[[], Any] = lambda: None
    ) -> Any:
        """Return ``write()``, or ``rest()`` if ``path`` has been written by this call."""
        if self._is_writing:  # a part of a larger write
            return write()
        place = f"{path} at {self._moment()}"
        self._counts[place] += 1
        key = f"written {place} {self._counts[place]}"
        with self._record.turn():
            # A forked process goes its own way, and not each host need have the file.
            if not is_forked() and self._record.find(key) is not None and os.path.exists(path):
                return rest()
            found = self.alone(write)
            self._record.first(key, 1)
            return found

    def alone(self, write: Callable[[], Any]) -> Any:
        """Return ``write()``, which this worker makes and perhaps no other."""
        before, self._is_writing = self._is_writing, True
        try:
            return write()
        finally:
            self._is_writing = before


class KeptLoads:
    """The loads of one worker's script, counted alike on all workers.

    Args:
        folder: where copies are kept; made at the first need.
        tell: says a line to the user.
        lasting_name: returns how later launches know a path, which is another name for a file in
            a temporary directory.  Such a file is copied at once: it may be gone with its job.
    """

    def __init__(
        self,
        folder: Path,
        tell: Callable[[str], None],
        lasting_name: Callable[[str], str] = lambda path: path,
    ) -> None:
        self._folder = folder
        self._tell = tell
        self._lasting_name = lasting_name
        self._loads = 0
        self._loaded: dict[str, list[Path]] = {}

    def load(self, absolute: str) -> str:
        """Return what the script's next load of a file is to read."""
        self._loads += 1
        name = self._lasting_name(absolute)
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        copy = self._folder / f"{self._loads}-{digest}-{os.path.basename(absolute)}"
        if not copy.exists():
            self._loaded.setdefault(absolute, []).append(copy)
            if name != absolute:
                self.before_write(absolute)
            return absolute
        if name == absolute:
            self._tell(
                f"the script gets {absolute} as it was when this run loaded it first, because the "
                f"run has written it since: {copy}"
            )
        return str(copy)

    def before_removal(self, absolute: str) -> None:
        """Keep a file, or all files of a directory, for the loads that have read them."""
        below = os.path.join(absolute, "")
        for path in list(self._loaded):
            if path == absolute or path.startswith(below):
                self.before_write(path)

    def before_write(self, absolute: str) -> None:
        """Keep the file as it is for the loads that have read it, if there were any."""
        copies = self._loaded.pop(absolute, [])
        if not os.path.isfile(absolute):
            return
        for copy in (copy for copy in copies if not copy.exists()):  # another worker has made it
            copy.parent.mkdir(exist_ok=True)
            beside = copy.with_name(f".{copy.name}.{os.getpid()}")
            shutil.copyfile(absolute, beside)
            os.replace(beside, copy)


class FirstSaves:
    """One worker's way to save and to load models.

    Args:
        writes: those of the script itself.
        scratch: returns a private folder, which exists.
        kept: what the script has loaded.
        wrote: hears of each path that a model is saved to.
    """

    def __init__(
        self,
        writes: SharedWrites,
        scratch: Callable[[], Path],
        kept: KeptLoads,
        wrote: Callable[[str], None] = lambda path: None,
    ) -> None:
        self._writes = writes
        self._scratch = scratch
        self._kept = kept
        self._wrote = wrote
        self._names = 0
        self._put_off = _PutOff()
        self.hooks: FirstFiles | None = None
        """The files of the hooks that run now, None outside of hooks."""

    def save(self, real: Callable[..., Any], model: Any, path: Any, *more: Any, **by: Any) -> Any:
        """Save a model or its weights with Keras's function ``real``."""
        absolute = os.path.abspath(os.fspath(path))
        with contextlib.nullcontext() if self.hooks is None else self.hooks.own_work():
            self._wrote(absolute)
        if self.hooks is not None:

            def save(to: Any) -> Any:
                return self._writes.alone(lambda: real(model, to, *more, **by))

            return self._save_in_hook(save, model, path)

        def write() -> Any:
            if not is_forked():
                self._kept.before_write(absolute)
                return real(model, path, *more, **by)
            # Those of other workers may read the same file at any time.
            beside = Path(absolute).with_name(f".{os.getpid()}-{Path(absolute).name}")
            real(model, beside, *more, **by)
            return os.replace(beside, absolute)

        if is_forked() and not absolute.endswith((".keras", ".h5")):
            return real(model, path, *more, **by)
        return self._writes.once(absolute, write)

    def path_to_load(self, path: Any) -> Any:
        """Return where the script's own save of ``path`` lies on this worker."""
        if not isinstance(path, (str, os.PathLike)) or is_forked():
            return path
        absolute = os.path.abspath(os.fspath(path))
        if self.hooks is not None:
            self._forget_round(self.hooks)
            self._make(absolute, self.hooks)
        private = self._put_off.made.get(absolute)
        found = str(private) if private is not None and private.exists() else path
        if self.hooks is not None:
            return found
        kept = self._kept.load(absolute)
        return found if kept == absolute else kept

    def _save_in_hook(self, save: Callable[[Any], Any], model: Any, path: Any) -> Any:
        assert self.hooks is not None
        absolute = os.path.abspath(os.fspath(path))
        if self.hooks.is_first:
            with self.hooks.own_work():
                self._kept.before_write(absolute)
            return save(path)
        self._forget_round(self.hooks)
        then = _values(model)

        def save_later() -> None:
            self._kept.before_write(absolute)
            _with_values(then, lambda: save(path))

        self.hooks.defers(save_later)
        self._put_off.saves[absolute] = lambda to: _with_values(then, lambda: save(to))
        return None

    def _forget_round(self, hooks: FirstFiles) -> None:
        """Forget the saves of a round that is over: the first worker's files are there."""
        if hooks.rounds != self._put_off.round or hooks is not self._put_off.hooks:
            with hooks.own_work():
                for path in self._put_off.made.values():
                    shutil.rmtree(path.parent, ignore_errors=True)
            self._put_off = _PutOff(hooks, hooks.rounds)

    def _make(self, absolute: str, hooks: FirstFiles) -> None:
        """Write a save that was put off in this round into a private folder."""
        save = self._put_off.saves.pop(absolute, None)
        if save is None:
            return
        with hooks.own_work():
            before = self._put_off.made.get(absolute)
            if before is not None:
                shutil.rmtree(before.parent, ignore_errors=True)
            path = self._new_folder() / Path(absolute).name
            self._put_off.made[absolute] = path
            save(str(path))

    def _new_folder(self) -> Path:
        """Return a new private folder."""
        self._names += 1
        folder = self._scratch() / f"saved-{self._names}"
        folder.mkdir()
        return folder


@dataclass(slots=True)
class _PutOff:
    """Saves that hooks of one round have put off, by their paths, and those that were needed."""

    hooks: FirstFiles | None = None
    round: int = 0
    saves: dict[str, Callable[[str], None]] = field(default_factory=dict)
    made: dict[str, Path] = field(default_factory=dict)


def install(saves: FirstSaves) -> None:
    """Exchange Keras's functions to save and to load; done once in a process."""
    import keras
    from keras.src.saving import saving_api

    def saving(real: Any) -> Any:
        def save(model: Any, filepath: Any, *more: Any, **by: Any) -> Any:
            return saves.save(real, model, filepath, *more, **by)

        return save

    def load_model(filepath: Any, *more: Any, **by: Any) -> Any:
        return real_load_model(saves.path_to_load(filepath), *more, **by)

    def load_weights(model: Any, filepath: Any, *more: Any, **by: Any) -> Any:
        return real_load_weights(model, saves.path_to_load(filepath), *more, **by)

    real_load_model, real_load_weights = saving_api.load_model, saving_api.load_weights
    exchanged = {
        "save_model": saving(saving_api.save_model),
        "save_weights": saving(saving_api.save_weights),
        "load_model": load_model,
        "load_weights": load_weights,
    }
    for name, function in exchanged.items():
        real = getattr(saving_api, name)
        functools.update_wrapper(function, real)
        for module in (saving_api, keras.saving, keras.models):
            if getattr(module, name, None) is real:
                setattr(module, name, function)
    keras.Model.export = functools.wraps(keras.Model.export)(saving(keras.Model.export))


def _values(model: Any) -> list[tuple[Any, Any]]:
    """Return the variables of model and optimizer with what they hold now."""
    variables = list(model.variables)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        variables += optimizer.variables
    return [(variable, variable.value.read_value()) for variable in variables]


def _with_values(values: list[tuple[Any, Any]], call: Callable[[], Any]) -> None:
    """Call with other values in the variables, and give them back what they hold now."""
    now = [(variable, variable.value.read_value()) for variable, _ in values]
    try:
        _assign(values)
        call()
    finally:
        _assign(now)


def _assign(values: list[tuple[Any, Any]]) -> None:
    for variable, value in values:
        variable.assign(value)
