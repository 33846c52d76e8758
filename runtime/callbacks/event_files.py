"""TensorBoard's event files: written once, by the first worker, and without steps of lost launches.

TensorFlow writes event files from C++, which the guard of `callback_files` does not see.  So every
worker's callback writes events into a private folder.  At an agreement the first worker copies what
is new to where the callback wants it.  An event file is a list of records, so bytes that end with a
record may be appended and cut.

The names of the copies end with a token of the run and its phase.  So files that a lost launch has
begun after the restored checkpoint are known, and removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.callbacks.callback_files import FirstFiles, Length, length_of


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

    def __init__(self, files: FirstFiles, token: str) -> None:
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
        private = self._files.new_folder()
        if self._files.is_first:
            with self._files.own_work():  # TensorFlow makes it here, and callbacks write beside it
                os.makedirs(logdir, exist_ok=True)
        writer = real(str(private), *more, **by)
        self._writers.append(_Writer(writer, self._files.absolute(logdir), private))
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
