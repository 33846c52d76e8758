"""What Keras and TensorFlow write from C for callbacks and scripts: by one worker, for all.

The overlay does not see it.  So Keras's own functions to save and to load are exchanged once, when
the script imports Keras, and those of TensorFlow that write checkpoints, SavedModels and caches.

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

A file of ``Dataset.cache(file)`` is one that every worker would fill.  TensorFlow lets one pass at
a time do so, and keeps others away by a lock file.  Here every worker looks at its first batch, and
more than one may read a whole pass.  So each fills a cache of its own, in each launch.

TensorFlow writes TensorBoard's event files from C++.  So every worker's callback writes events into
a private folder.  At an agreement the first worker copies what is new to where the callback wants
it.  An event file is a list of records, so bytes that end with a record may be appended and cut.
The names of the copies end with a token of the run and its phase.  So files that a lost launch has
begun after the restored checkpoint are known, and removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.runtime.script.calls import stand_in
from holdfast.runtime.script.overlay import Length, Overlay, length_of, own_work, replacing
from holdfast.runtime.script.process import ScriptProcess
from holdfast.runtime.script.writes import SharedWrites


class KeptLoads:
    """The loads of one worker's script, counted alike on all workers.

    Args:
        folder: where copies are kept; made at the first need.
        tell: says a line to the user.
        lasting_name: returns how later launches know a path, which is another name for a file in
            a temporary folder.  Such a file is copied at once: it may be gone with its job.
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
            with replacing(copy) as beside:
                shutil.copyfile(absolute, beside)


class FirstSaves:
    """One worker's way to save and to load models.

    Args:
        process: that of the script itself.
        kept: what the script has loaded.
    """

    def __init__(self, process: ScriptProcess, kept: KeptLoads) -> None:
        self._process = process
        self._writes = process.writes
        self._kept = kept
        self._put_off = _PutOff()
        self.hooks: Overlay | None = None
        """The files of the hooks that run now, None outside of hooks."""

    def save(
        self, real: Callable[..., Any], model: Any, filepath: Any, *more: Any, **by: Any
    ) -> Any:
        """Save a model or its weights with Keras's function ``real``."""
        absolute = os.path.abspath(os.fspath(filepath))
        with own_work() if self.hooks is not None else contextlib.nullcontext():
            self._process.wrote(absolute)
        if self.hooks is not None:

            def save(to: Any) -> Any:
                return self._writes.alone(lambda: real(model, to, *more, **by))

            return self._save_in_hook(save, model, filepath)

        def write() -> Any:
            if not self._writes.is_forked:
                self._kept.before_write(absolute)
                return real(model, filepath, *more, **by)
            with replacing(Path(absolute)) as beside:  # those of other workers may read it
                return real(model, beside, *more, **by)

        if self._writes.is_forked and not absolute.endswith((".keras", ".h5")):
            return real(model, filepath, *more, **by)
        return self._writes.once(absolute, write)

    def path_to_load(self, path: Any) -> Any:
        """Return where the script's own save of ``path`` lies on this worker."""
        if not isinstance(path, (str, os.PathLike)) or self._writes.is_forked:
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
            with own_work():
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

    def _forget_round(self, hooks: Overlay) -> None:
        """Forget the saves of a round that is over: the first worker's files are there."""
        if hooks.rounds != self._put_off.round or hooks is not self._put_off.hooks:
            with own_work():
                for path in self._put_off.made.values():
                    shutil.rmtree(path.parent, ignore_errors=True)
            self._put_off = _PutOff(hooks, hooks.rounds)

    def _make(self, absolute: str, hooks: Overlay) -> None:
        """Write a save that was put off in this round into a private folder."""
        save = self._put_off.saves.pop(absolute, None)
        if save is None:
            return
        with own_work():
            before = self._put_off.made.get(absolute)
            if before is not None:
                shutil.rmtree(before.parent, ignore_errors=True)
            path = hooks.new_folder() / Path(absolute).name
            self._put_off.made[absolute] = path
            save(str(path))


@dataclass(slots=True)
class _PutOff:
    """Saves that hooks of one round have put off, by their paths, and those that were needed."""

    hooks: Overlay | None = None
    round: int = 0
    saves: dict[str, Callable[[str], None]] = field(default_factory=dict)
    made: dict[str, Path] = field(default_factory=dict)


def install(saves: FirstSaves) -> None:
    """Exchange Keras's functions to save and to load; done once in a process."""
    import keras
    from keras.src.saving import saving_api

    def load_model(plain: Any, filepath: Any, *more: Any, **by: Any) -> Any:
        return plain(saves.path_to_load(filepath), *more, **by)

    def load_weights(plain: Any, model: Any, filepath: Any, *more: Any, **by: Any) -> Any:
        return plain(model, saves.path_to_load(filepath), *more, **by)

    rules: dict[str, Callable[..., Any]] = {
        "save_model": saves.save,
        "save_weights": saves.save,
        "load_model": load_model,
        "load_weights": load_weights,
    }
    for name, rule in rules.items():
        real = getattr(saving_api, name)
        stand_in(saving_api, name, rule)
        for module in (keras.saving, keras.models):
            if getattr(module, name, None) is real:
                setattr(module, name, getattr(saving_api, name))
    stand_in(keras.Model, "export", saves.save)


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


_INDEX = ".index"
"""The end of the name of the file that TensorFlow writes last."""


def share_caches(tensorflow: Any, scratch: Callable[[], Path]) -> None:
    """Let each worker fill caches of its own in its private folder; a whole one is read."""
    numbers = itertools.count(1)

    def cache(plain: Any, dataset: Any, filename: Any = "", name: Any = None) -> Any:
        is_path = isinstance(filename, (str, bytes, os.PathLike)) and bool(filename)
        if is_path and not tensorflow.io.gfile.exists(os.fsdecode(filename) + _INDEX):
            filename = str(scratch() / f"cache-{next(numbers)}")
        return plain(dataset, filename, name)

    stand_in(tensorflow.data.Dataset, "cache", cache)


def share_checkpoints(tensorflow: Any, writes: SharedWrites) -> None:
    """Let one worker write each checkpoint and SavedModel of TensorFlow's own."""

    def write(plain: Any, checkpoint: Any, file_prefix: Any, options: Any = None) -> Any:
        prefix = os.path.abspath(os.fsdecode(file_prefix))

        def rest() -> str:
            for hear in getattr(options, "experimental_write_callbacks", None) or ():
                hear(file_prefix)  # a manager counts its checkpoints
            return str(file_prefix)

        return writes.once(
            f"{prefix}{_INDEX}", lambda: plain(checkpoint, file_prefix, options), rest
        )

    def save(plain: Any, obj: Any, export_dir: Any, *more: Any, **by: Any) -> None:
        where = os.path.abspath(os.fsdecode(export_dir))
        writes.once(where, lambda: plain(obj, export_dir, *more, **by))

    def note(plain: Any, save_dir: Any, *more: Any, **by: Any) -> None:
        where = os.path.abspath(os.path.join(os.fsdecode(save_dir), "checkpoint"))
        writes.once(where, lambda: plain(save_dir, *more, **by))

    stand_in(tensorflow.train.Checkpoint, "_write", write)
    stand_in(tensorflow.saved_model, "save", save)
    stand_in(sys.modules[_MANAGEMENT], "update_checkpoint_state_internal", note)


_MANAGEMENT = "tensorflow.python.checkpoint.checkpoint_management"


@dataclass(slots=True)
class _Writer:
    """A summary writer, its private folder, and the folder that the callback asked for."""

    writer: Any
    folder: Path
    private: Path
    copied: int = 0
    """Bytes of the private file that are in the real one, or in that of a dead worker."""
    target: Path | None = None

    def flush(self) -> Path | None:
        """Return the private file with all events so far, None if there is none."""
        self.writer.flush()
        return next(iter(sorted(self.private.iterdir())), None)


class EventFiles:
    """The event files of one worker's callbacks.

    Args:
        files: knows whether this worker is the first, and the lengths at the last agreement.
        token: ends the names of the files; it names the run and its phase.
    """

    def __init__(self, files: Overlay, token: str) -> None:
        self._files = files
        self._token = token
        self._writers: list[_Writer] = []

    def attach(self, callback: Any) -> None:
        """Let a TensorBoard callback write through this object; call it before ``set_model``.

        One that an earlier training had still writes through the object of that one.
        """
        summary = callback.summary
        module = summary.module if isinstance(summary, _Summary) else summary
        callback._summary_module = _Summary(module, self.create_writer)

    def create_writer(self, real: Callable[..., Any], logdir: Any, *more: Any, **by: Any) -> Any:
        """Return a summary writer into a private folder, instead of one into ``logdir``."""
        private, folder = self._files.new_folder(), Path(os.path.abspath(os.fsdecode(logdir)))
        if self._files.is_first:
            with own_work():  # TensorFlow makes it here, and callbacks write beside it
                os.makedirs(logdir, exist_ok=True)
            self._files.wrote(str(folder))
        writer = real(str(private), *more, **by)
        self._writers.append(_Writer(writer, folder, private))
        return writer

    def measure(self, lengths: dict[str, Length]) -> None:
        """Copy what is new, and add the lengths of the files; done on the first worker."""
        for writer in self._writers:
            private = writer.flush()
            if private is None:
                continue
            target = self._target(writer, private)
            news = _read(private, writer.copied)
            if news:
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("ab") as file:
                    file.write(news)
                writer.copied += len(news)
            if target.is_file():
                lengths[str(target)] = length_of(target)

    def agreed(self) -> None:
        """Hear that the first worker has copied the events of this round."""
        for writer in self._writers:
            private = writer.flush()
            if private is not None:
                writer.copied = private.stat().st_size

    def close(self) -> None:
        """Remove the private files; the training has ended."""
        for writer in self._writers:
            writer.writer.close()
        self._writers.clear()

    def _target(self, writer: _Writer, private: Path) -> Path:
        """Return the real file; the first time remove what lost launches and workers left."""
        if writer.target is None:
            known = self._files.lengths
            mine = [path for path in writer.folder.glob("*tfevents*") if self._is_ours(path)]
            taken = {other.target for other in self._writers}
            for path in mine:
                if str(path) not in known and path not in taken:
                    path.unlink()
            begun = [Path(path) for path in known if Path(path).parent == writer.folder]
            begun = [path for path in begun if self._is_ours(path) and path not in taken]
            if writer.copied and begun:  # the dead worker's file goes on
                writer.target = max(begun)
                self._files.cut(writer.target)
            else:
                writer.target = writer.folder / (private.name + self._token)
        return writer.target

    def _is_ours(self, path: Path) -> bool:
        return path.name.endswith(self._token)


class _Summary:
    """TensorFlow's module ``summary``, with another way to make writers."""

    def __init__(self, module: Any, create_writer: Callable[..., Any]) -> None:
        self.module = module
        self._create_writer = create_writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def create_file_writer(self, logdir: Any, *more: Any, **by: Any) -> Any:
        return self._create_writer(self.module.create_file_writer, logdir, *more, **by)


def _read(path: Path, begin: int) -> bytes:
    with path.open("rb") as file:
        file.seek(begin)
        return file.read()
