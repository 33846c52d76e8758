"""A function as the script of a job: its files, and what a worker does with them.

A folder below the run directory holds the function with its arguments, a script that calls it, and
what came of it.  Its name is the digest of the call.  So a complete run of the same call answers at
once, and another call never gets an old answer.  Its trainings are restored, as for any script::

    RUN_DIR/launch/4f0c.../train.py         the script of the job
    RUN_DIR/launch/4f0c.../call.pickle      function, arguments, and where Python looks for modules
    RUN_DIR/launch/4f0c.../result.pickle    the value that the first worker has returned
    RUN_DIR/launch/4f0c.../error-2.pickle   what has ended the function on worker 2

cloudpickle writes an importable function as its module and name, and any other one as its code.
Only the program that has launched the job, and its workers, read these files.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.files import write_whole
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.training.stages import is_first
from holdfast.runtime.worker import context as contexts

FOLDER = "launch"

_CALL, _RESULT, _ERROR = "call.pickle", "result.pickle", "error-{}.pickle"
_SCRIPT = """# Calls the function that holdfast.launch was given.
# {digest}
from holdfast.runtime.launch.launched_function import call_in_worker

call_in_worker(__file__)
"""


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments, as bytes, and a name for its script and its run."""

    name: str
    content: bytes

    @staticmethod
    def of(function: Callable[..., Any], arguments: Sequence[Any]) -> Call:
        """Return the call of a function.

        Raises:
            UsageError: the function or an argument cannot be sent to another process.
        """
        name = name_of(function)
        try:
            return Call(name, _cloudpickle().dumps((function, tuple(arguments))))
        except Exception as error:
            raise UsageError(
                f"launch() cannot send {name} to its workers: {type(error).__name__}: {error}; "
                "open files, data and models within the function"
            ) from error

    @property
    def digest(self) -> str:
        """What tells this call from any other."""
        return hashlib.sha256(self.content).hexdigest()

    def write(self, run_dir: Path, *, is_fresh: bool) -> Path:
        """Write the files of the call; return its script.

        Raises:
            UsageError: the run is that of another call, whose training it would restore.
        """
        folder = run_dir / FOLDER / self.digest[:16]
        others = [other for other in (run_dir / FOLDER).glob("*") if other != folder]
        if others and not is_fresh and RunDirectory(run_dir).record_path.exists():
            raise UsageError(
                f"{run_dir} holds the run of another call; give another run_dir, or fresh=True"
            )
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(_ERROR.format("*")):
            old.unlink()
        write_whole(folder / _CALL, _cloudpickle().dumps((list(sys.path), self.content)))
        script = folder / f"{self.name}.py"
        write_whole(script, _SCRIPT.format(digest=self.digest).encode())
        return script


def name_of(function: Callable[..., Any]) -> str:
    """Return a name for the script and the run of a function."""
    inner = getattr(function, "func", function)  # that of a functools.partial
    name = getattr(inner, "__name__", type(inner).__name__)
    return name if name.isidentifier() else "function"


def result_of(script: Path) -> Any:
    """Return what the function has returned on the first worker."""
    return _cloudpickle().loads((script.parent / _RESULT).read_bytes())


def failure_of(script: Path) -> tuple[Exception | None, str]:
    """Return an error of the function, if it can be sent, and its traceback, empty without any."""
    for path in sorted(script.parent.glob(_ERROR.format("*"))):
        error, trace = _cloudpickle().loads(path.read_bytes())
        return error, trace
    return None, ""


def call_in_worker(script: str) -> None:
    """Call the function of a job in a worker, and write what came of it."""
    folder = Path(script).parent
    with contextlib.suppress(FileNotFoundError):  # of a launch that the job has survived
        (folder / _ERROR.format(contexts.rank())).unlink()
    paths, call = _cloudpickle().loads((folder / _CALL).read_bytes())
    sys.path += [path for path in paths if path not in sys.path]
    try:
        function, arguments = _cloudpickle().loads(call)
        answer = _cloudpickle().dumps(function(*arguments))
    except Exception as error:
        write_whole(folder / _ERROR.format(contexts.rank()), _sendable(error))
        raise
    path = folder / _RESULT
    if is_first():
        write_whole(path, answer)
    else:  # the first worker may die before it has written
        contexts.when_all_have_left(lambda: None if path.exists() else write_whole(path, answer))


def _cloudpickle() -> Any:
    """Return cloudpickle, which only a launched function needs.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import cloudpickle
    except ImportError as error:
        raise UsageError(
            "launch() needs cloudpickle to send a function to workers: `pip install cloudpickle`, "
            "or launch a script"
        ) from error
    return cloudpickle


def _sendable(error: Exception) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        content: bytes = _cloudpickle().dumps((error, text))
        _cloudpickle().loads(content)
    except Exception:  # of a class with other arguments than its own
        content = _cloudpickle().dumps((None, text))
    return content
