"""The guard that stands between hooks of callbacks and the disk while a round runs.

Python's own ways to change files are exchanged while the hooks of callbacks run, and only
for the thread that runs them: threads of the saver write checkpoints meanwhile.  Libraries
that write files from C are not seen.  Those of Keras are in `first_saves`, TensorBoard's in
`event_files`.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.runtime.callbacks.first_files import FirstFiles

_Handler = Callable[[FirstFiles, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@contextlib.contextmanager
def guarding(files: FirstFiles) -> Iterator[None]:
    """Let hooks that run inside see the disk through ``files``."""
    thread = threading.get_ident()
    real = {place: getattr(*place) for place in _HANDLERS}
    for (module, name), function in real.items():
        setattr(module, name, _guarded(files, thread, function, _HANDLERS[module, name]))
    try:
        yield
    finally:
        for (module, name), function in real.items():
            setattr(module, name, function)


def _guarded(
    files: FirstFiles, thread: int, function: Callable[..., Any], handler: _Handler
) -> Callable[..., Any]:
    def guarded(*arguments: Any, **keywords: Any) -> Any:
        if threading.get_ident() != thread or files.is_own_work:
            return function(*arguments, **keywords)
        with files.own_work():
            return handler(files, function, arguments, keywords)

    return guarded


def _open(
    files: FirstFiles, function: Callable[..., Any], arguments: tuple[Any, ...], by: dict[str, Any]
) -> Any:
    def opened(file: Any, mode: str = "r", *more: Any, **others: Any) -> Any:
        if isinstance(file, int) or others.get("opener") is not None or not _is_regular(file):
            return function(file, mode, *more, **others)
        return files.open(function, file, mode, *more, **others)

    return opened(*arguments, **by)


def _move(
    files: FirstFiles, function: Callable[..., Any], arguments: tuple[Any, ...], by: dict[str, Any]
) -> None:
    def moved(src: Any, dst: Any, **others: Any) -> None:
        if not files.is_first and files.moves(src, dst):
            return
        if not files.defers(lambda: function(src, dst, **others)):
            function(src, dst, **others)

    moved(*arguments, **by)


def _remove(
    files: FirstFiles, function: Callable[..., Any], arguments: tuple[Any, ...], by: dict[str, Any]
) -> None:
    def removed(path: Any, **others: Any) -> None:
        if not files.is_first and files.moves(path, None):
            return
        if files.defers(lambda: function(path, **others)):
            return
        with contextlib.suppress(*[FileNotFoundError] * files.may_repeat):
            function(path, **others)

    removed(*arguments, **by)


def _make_folder(
    files: FirstFiles, function: Callable[..., Any], arguments: tuple[Any, ...], by: dict[str, Any]
) -> None:
    if files.defers(lambda: function(*arguments, **by)):
        return
    with contextlib.suppress(*[FileExistsError] * files.is_resuming):
        function(*arguments, **by)


def _put_off(
    files: FirstFiles, function: Callable[..., Any], arguments: tuple[Any, ...], by: dict[str, Any]
) -> Any:
    if files.defers(lambda: function(*arguments, **by)):
        return None
    return function(*arguments, **by)


def _is_regular(path: Any) -> bool:
    """Return whether the path names a plain file, or none yet: devices and pipes are left alone."""
    return os.path.isfile(path) or not os.path.exists(path)


_HANDLERS: dict[tuple[Any, str], _Handler] = {
    (builtins, "open"): _open,
    (io, "open"): _open,
    (os, "replace"): _move,
    (os, "rename"): _move,
    (os, "remove"): _remove,
    (os, "unlink"): _remove,
    (os, "mkdir"): _make_folder,
    (os, "rmdir"): _put_off,
    (os, "symlink"): _put_off,
    (os, "link"): _put_off,
    (os, "chmod"): _put_off,
    (os, "utime"): _put_off,
    (os, "truncate"): _put_off,
    (shutil, "rmtree"): _put_off,
}
