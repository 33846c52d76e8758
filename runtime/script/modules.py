"""The user's own modules: which of them the script gets, and with which text.

What a job began with is what each of its launches runs, whatever stands on the disk by then.

Warm processes may have imported another module of the same name already.  A ``statistics.py``
beside the script is imported in place of Python's own, as by ``python train.py``.  Modules that are
loaded keep what they have imported.
"""

from __future__ import annotations

import contextlib
import importlib.util
import linecache
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.program import digest_of, identity_of, is_users, keep, kept
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.script_record import ScriptRecord

_OF_PYTHONS_START = frozenset({
    "__main__", "_collections_abc", "_sitebuiltins", "abc", "codecs", "encodings", "genericpath",
    "io", "os", "posixpath", "site", "sitecustomize", "stat", "usercustomize", "zipimport",
})  # fmt: skip
"""Plain Python has imported these before the script, so a file beside it does not count."""

_OURS = frozenset(
    {"h5py", "holdfast", "keras", "mpi4py", "numpy", "psutil", "tensorflow", "xxhash"}
)
"""Without these there is no training."""

_GENERATED = "__autograph_generated_file"
"""What TensorFlow has translated from a function: each process has its own."""


def prefer_users_modules(folder: Path) -> None:
    """Let the modules in ``folder`` be imported from now on, also if others have their names."""
    beside: list[str] = []
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            if file.suffix == ".py" or (file / "__init__.py").is_file():
                beside.append(file.stem)
    loaded = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    names = hidden(beside, loaded, str(folder))
    for name in [name for name in loaded if name.partition(".")[0] in names]:
        del sys.modules[name]


def hidden(beside: Sequence[str], loaded: Mapping[str, str | None], folder: str) -> list[str]:
    """Return the names of modules ``beside`` a script that are loaded from another place.

    ``loaded`` has the file of each loaded module, by its name; built-in ones have none.
    """
    fixed = _OF_PYTHONS_START | _OURS | set(sys.builtin_module_names)
    return sorted(
        name
        for name in beside
        if name in loaded
        and name not in fixed
        and not (loaded[name] or "").startswith(f"{folder}/")
    )


class OwnFiles:
    """The user's files that this process runs: of each one the text that the job began with.

    A file that the job's client has not found is kept by the first worker that imports it.  So is
    one that is loaded again: then the script itself may have written it anew.  So is a module that
    was written between the first launch's begin and its training: scripts write modules for
    themselves, and plain Python would take it as it is.  The first worker decides for all.

    ``record`` is that of the run, and ``tell`` shows a line to the user.  ``began`` is when this
    process did, before any script.  ``is_early`` tells whether no training has begun.
    """

    def __init__(
        self,
        config: WorkerConfig,
        record: ScriptRecord,
        tell: Callable[[str], None],
        *,
        began: float = math.inf,
        is_early: Callable[[], bool] = lambda: True,
    ) -> None:
        self._begun = config.program
        self._folder = RunDirectory(config.options.run_dir).program_path
        self._record = record
        self._job = config.lease_token
        self._tell = tell
        self._began, self._is_early = began, is_early
        first = record.first(f"first launch of {self._job}", config.generation)
        self._is_first_launch = first == config.generation
        self._loads: Counter[str] = Counter()
        self.ran: dict[str, str] = {}
        """The digest of each file that has run."""

    def text(self, file: str, module: str = "") -> bytes:
        """Return what runs of a file, and remember its lines for tracebacks and AutoGraph.

        Raises:
            OSError: there is no such file.
            UsageError: it has changed, and the text that the job began with is gone; or the
                ``module`` was another file's when the job began.
        """
        path = os.path.realpath(file)
        self._loads[path] += 1
        key = f"text {self._loads[path]} of {path} in {self._job}"
        begun = self._begun.get(path) if self._loads[path] == 1 else None
        settled = self._record.find(key)
        try:
            text = Path(path).read_bytes()
        except OSError:
            if begun is None:
                raise
            text = b""
        mine = digest_of(text)
        if module:
            self._refuse_another(module, path, mine, is_new=begun is None and settled is None)
        is_written = bool(begun and module) and mine != begun and self._is_of_this_launch(path)
        if settled is None and (begun is None or is_written):
            with contextlib.suppress(OSError):
                keep(self._folder, [text])
            begun = mine
        begun = self._record.first(key, begun)
        if mine == begun and settled is None and is_written:
            self._tell(
                f"{path} was written after this job began, before the script imported it: the job "
                "goes on with what it is now"
            )
        if mine != begun:
            text = self._kept(path, begun)
        self.ran[path] = begun
        with contextlib.suppress(SyntaxError, UnicodeDecodeError):  # whoever compiles it is told
            lines = importlib.util.decode_source(text).splitlines(keepends=True)
            linecache.cache[file] = (len(text), None, lines, file)
        return text

    def _is_of_this_launch(self, path: str) -> bool:
        """Return whether a file was written in the first launch, before any training."""
        with contextlib.suppress(OSError):
            is_new = os.stat(path).st_mtime >= self._began
            return is_new and self._is_first_launch and self._is_early()
        return False

    def _refuse_another(self, module: str, path: str, mine: str, *, is_new: bool) -> None:
        """Refuse a new file with another text for a module that the job has from elsewhere."""
        self._loads[f"module {module}"] += 1
        key = f"file {self._loads[f'module {module}']} of module {module} in {self._job}"
        before = self._record.first(key, path)
        folder, name = os.path.split(path)
        beside = f"{folder}.py" if name == "__init__.py" else f"{path[:-3]}/__init__.py"
        if before == path and beside in self._begun:
            before = beside
        text = self._record.find(f"text 1 of {before} in {self._job}") or self._begun.get(before)
        if is_new and before != path and text != mine and not self._is_first_launch:
            raise UsageError(
                f"the module {module} was {before} when this job began, and is {path} now: bring "
                "that back, or run again: the run goes on with the new one"
            )

    def _kept(self, path: str, digest: str) -> bytes:
        changed = f"{path} has changed since this job began"
        try:
            text = kept(self._folder, digest)
        except OSError as error:
            raise UsageError(
                f"{changed}, and what it was cannot be read ({error}): bring that back, or run "
                "again: the run goes on with the new one"
            ) from error
        self._tell(
            f"{changed}: the job goes on with what it was; the next job takes what it is then"
        )
        return text


_own: OwnFiles | None = None


def run_as_begun(own: OwnFiles) -> None:
    """Let this process run the user's files as its job has begun with them."""
    global _own  # noqa: PLW0603  (one process is one worker)
    _own = own
    plain = SourceFileLoader.get_code

    def get_code(self: Any, fullname: str) -> CodeType | None:
        if not is_users(self.path) or fullname.startswith(_GENERATED):
            return plain(self, fullname)
        code: CodeType = self.source_to_code(own.text(self.path, fullname), self.path)
        return code

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign]


def text_of(file: str) -> bytes:
    """Return what runs of a file; raises what `OwnFiles.text` does."""
    return Path(file).read_bytes() if _own is None else _own.text(file)


def script_digest(argv: Sequence[str]) -> str:
    """Return the digest of the user's files that have run here, and of the script's arguments.

    Modules that are imported later have no part in it.
    """
    ran = {} if _own is None else _own.ran
    return identity_of(((os.path.basename(p), sha) for p, sha in ran.items()), list(argv))
