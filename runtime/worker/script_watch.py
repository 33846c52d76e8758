"""What a script has read, so that another run of it is known to do nothing.

A complete run that is started again trains nothing: each ``fit`` restores its end.  To find that
out takes all workers and TensorFlow.  So at its end each worker tells which files its script has
read and written, and the next ``holdfast run`` compares them (`head/nothing_to_do`).

Theory of being sure.  Python tells of each file that Python code opens (PEP 578).  It tells
nothing of files that libraries open in C.  So a script counts only if its imports are known to
read through Python, and if its text names nothing that reads otherwise, or that is no file: the
environment, another process, a network.  Every doubt is a reason to run as ever.
"""

from __future__ import annotations

import ast
import contextlib
import os
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from holdfast.runtime.options.run_terms import script_terms
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.entries import record
from holdfast.runtime.run.events import ScriptEnded
from holdfast.runtime.run.journal import Recorder
from holdfast.runtime.run.stamps import stamp_of

_KNOWN = frozenset(
    {"holdfast", "keras", "matplotlib", "numpy", "pandas", "PIL", "sklearn", "tensorflow"}
) | (sys.stdlib_module_names - {"ctypes", "mmap", "multiprocessing", "socket", "subprocess"})
"""Packages that read files through Python, but for what is named below."""

_UNSEEN = frozenset({
    "Checkpoint", "CheckpointManager", "CsvDataset", "FixedLengthRecordDataset", "HDF5Data",
    "HDFStore", "ImageFolderData", "IntegerLookup", "KerasFileEditor", "SqlDataset", "StringLookup",
    "TFRecordData", "TFRecordDataset", "TFSMLayer", "TextFileInitializer", "TextLineDataset",
    "TextVectorization", "__import__", "environ", "environb", "eval", "exec", "from_file", "getenv",
    "getenvb", "gfile", "import_module", "input", "list_files", "load", "load_checkpoint",
    "load_model", "load_variable", "load_weights", "make_batched_features_dataset",
    "make_csv_dataset", "matching_files", "read_feather", "read_file", "read_hdf", "read_orc",
    "read_parquet", "read_spss", "read_sql", "read_sql_query", "read_sql_table", "run_module",
    "run_path", "saved_model", "snapshot", "stdin", "tf_record_iterator", "use_multiprocessing",
    "vocabulary", "weights",
    "access", "exists", "getmtime", "getsize", "is_dir", "is_file", "is_symlink", "isdir", "isfile",
    "islink", "lexists", "lstat", "stat",
})  # fmt: skip
"""Names of what reads files in C, what asks for a file without reading it, or what is no file."""

_LOADERS = frozenset({"json", "np", "numpy", "pickle", "yaml"})
"""Their ``load`` opens a file in Python."""

_UNSEEN_END = "_from_directory"
_ELSEWHERE = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
    | {"socket.connect", "sqlite3.connect", "subprocess.Popen"}
)
"""Events of reading that is not from a file."""

_OF_DIRECTORIES = frozenset({"os.listdir", "os.mkdir", "os.scandir"})
_HEARD = frozenset({"open", "os.rename"}) | _OF_DIRECTORIES | _ELSEWHERE
_MOST_FILES = 200
_HOLDFAST = tuple(
    f"{Path(__file__).resolve().parents[2] / name}/"
    for name in ("api", "checkpoint", "recovery", "runtime")
)
_INSTALLED = tuple(
    {
        f"{os.path.realpath(place)}/"
        for place in (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values())
    }
    | {*_HOLDFAST, "/dev/", "/proc/", "/sys/", "/etc/", "/usr/"}
)
"""Nobody changes an installation between two runs without knowing it."""


class ScriptWatch:
    """Knows which files the script of this process has opened since this was made."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config
        here = ""
        with contextlib.suppress(OSError):  # it may be gone, and the script not need it
            here = os.getcwd()
        self._terms = script_terms(config.options, Path(here))
        self._own = f"{os.path.realpath(config.run_dir)}/"
        self._began = time.time()
        self._read: dict[str, str] = {}
        self._places: set[str] = {here} if here else set()
        self._unsure = ""
        self._is_on = True
        sys.addaudithook(self._hear)

    def tell(self, journal: Recorder) -> None:
        """Write down what the script has read and written; it has come to its end."""
        self._is_on = False
        script = self._config.options.script.resolve()
        sources = {script, *self._modules()}
        for source in sources:
            self._note(str(source))
        unsure = self._unsure or next(self._doubts(sources), "")
        if str(script).startswith((*_INSTALLED, self._own)):
            unsure = "its text is not all that it runs"
        read = [f"{stamp} {path}" for path, stamp in [*self._read.items()]]
        written = [] if unsure else sorted(self._written(sources))
        if len(read) + len(written) > _MOST_FILES:
            unsure = f"it has more than {_MOST_FILES} files"
        files = ((), ()) if unsure else (tuple(read), tuple(written))
        record(journal, ScriptEnded(self._config.worker, self._terms, *files, unsure))

    def _hear(self, event: str, values: tuple[Any, ...]) -> None:
        """Take an audit event; it must not raise, and most events are none of ours."""
        if not self._is_on or event not in _HEARD:
            return
        with contextlib.suppress(Exception):
            if event == "open":
                self._opened(*values)
            elif event in _OF_DIRECTORIES:
                place = os.path.abspath(os.fsdecode(values[0] or "."))
                self._places.add(place)
                if event != "os.mkdir" and _is_of_the_script(sys._getframe(1)):
                    self._note(place)
            elif event == "os.rename":
                self._places.add(os.path.dirname(os.path.abspath(os.fsdecode(values[1]))))
            else:
                self._unsure = self._unsure or f"it called {event}"

    def _opened(self, path: Any, mode: str | None, flags: int) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return  # a descriptor, of a file that was opened before
        if flags & os.O_DIRECTORY:
            return  # a listing tells of itself
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or set(mode or "") & set("wxa+")
        if writes:
            self._places.add(os.path.dirname(os.path.abspath(os.fsdecode(path))))
        if not writes or (flags & os.O_RDWR and not flags & (os.O_CREAT | os.O_TRUNC)):
            self._note(os.fsdecode(path))

    def _note(self, path: str) -> None:
        """Note a file as it is before it is read: a change meanwhile is seen later.

        Its name is that by which it was opened: a link may lead to another file later.
        """
        name = os.path.abspath(path)
        if name in self._read or any(map(self._is_nobodys, (name, os.path.realpath(path)))):
            return
        self._read[name] = stamp_of(name)
        if len(self._read) > _MOST_FILES:
            self._unsure, self._is_on = f"it has more than {_MOST_FILES} files", False
            self._read.clear()

    def _is_nobodys(self, path: str) -> bool:
        """Return whether a file is the run's own, the system's, or of an installation."""
        is_staged = path.startswith("/dev/shm/") and not path.startswith("/dev/shm/holdfast")
        return f"{path}/".startswith((*_INSTALLED, self._own)) and not is_staged

    def _modules(self) -> Iterator[Path]:
        """Yield the files of the user's own modules."""
        for module in [*sys.modules.values()]:
            if not isinstance(module, ModuleType):
                continue
            fields = object.__getattribute__(module, "__dict__")  # a lazy one stays unloaded
            file = fields.get("__file__")
            if isinstance(file, str) and not os.path.realpath(file).startswith(_INSTALLED):
                yield Path(os.path.realpath(file))

    def _doubts(self, sources: Iterable[Path]) -> Iterator[str]:
        """Yield why another run may do something, though the files are the same."""
        packages = {p.parent.name for p in sources if (p.parent / "__init__.py").exists()}
        known = _KNOWN | packages | {source.stem for source in sources}
        for source in sources:
            try:
                if source.stat().st_ctime >= self._began:
                    yield f"{source.name} was changed while it ran"
                tree = ast.parse(source.read_bytes())
            except (OSError, SyntaxError, ValueError):
                yield f"{source.name} is no text of Python"
                continue
            for name in _names_in(tree):
                if name in _UNSEEN or name.endswith(_UNSEEN_END):
                    yield f"{source.name} names {name}"
            for name in _imported_by(tree):
                if name not in known:
                    yield f"{source.name} imports {name}"
            self._places |= set(_folders_in(tree))

    def _written(self, sources: Iterable[Path]) -> Iterator[str]:
        """Yield the files that were written since the script began, where it may have written."""
        for place in self._places | {str(source.parent) for source in sources}:
            if f"{os.path.realpath(place)}/".startswith((*_INSTALLED, self._own)):
                continue
            with contextlib.suppress(OSError), os.scandir(place) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):  # a link that leads nowhere
                        found = entry.stat()
                        if entry.is_file() and found.st_mtime >= self._began:
                            yield f"{found.st_size} {entry.path}"


def _is_of_the_script(frame: FrameType | None) -> bool:
    """Return whether the script asks, perhaps by a library, and not an import or holdfast."""
    while frame is not None:
        name = frame.f_code.co_filename
        file = name if name.startswith("<") else os.path.realpath(name)
        if file.startswith(("<frozen importlib", *_HOLDFAST)) or "/importlib/" in file:
            return False
        if not file.startswith(("<", *_INSTALLED)):
            return True
        frame = frame.f_back
    return False


def _names_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="load", value=ast.Name(id=of)) if of in _LOADERS:
                pass
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.ImportFrom(names=names):
                yield from (alias.name for alias in names)


def _folders_in(tree: ast.AST) -> Iterator[str]:
    """Yield folders that a text names: libraries write files in C there, of which nobody tells."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if os.path.isdir(os.path.dirname(text)):
                yield os.path.abspath(os.path.dirname(text))


def _imported_by(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name.partition(".")[0] for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module.partition(".")[0]
