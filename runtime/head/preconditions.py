"""What must hold before anything of a job is started, each with the way to mend it.

A launch without one of these fails after a while, and its message names something else.  The rules
are pure, a sentence for each; only `surroundings` looks at the host.  A `ScriptSource` is what a
script says of itself before it runs: its imports, and the Keras backend that it sets.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.host.limits import needed
from holdfast.runtime.run.program import imports
from holdfast.runtime.run.progress import count, memory
from holdfast.runtime.system.channel import Loopback, loopback_state
from holdfast.runtime.system.own_process import answer_of, program_command, thread_count
from holdfast.runtime.system.usage import Resource

PACKAGES = ("numpy", "h5py", "mpi4py", "xxhash")
"""What every worker imports; all of them are folders."""

_FILES_OF_AGENT, _FILES_OF_WORKER = 21, 9
"""What an agent has open before its first launch, and for each worker; it needs some more."""

_ASKS_FOR_S = 30.0

_BACKEND = "KERAS_BACKEND"
TENSORFLOW = "tensorflow"

_TELL_THREADS = """
import os, sys
names = "sitecustomize", "usercustomize"
files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
if len(os.listdir("/proc/self/task")) > 1:
    print(*[file for file in files if file][:1] or ["a .pth file of site-packages"])
"""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What was found of a host."""

    loopback: Loopback = Loopback.WORKS
    most_files: int = 1 << 20
    """What this user may raise the limit of open files to."""
    most_bytes: int = resource.RLIM_INFINITY
    """What this user may raise the limit of the size of files to."""
    hidden: Mapping[str, str] = field(default_factory=dict)
    """The files of the user that stand in the place of a package, by its name."""
    threads_of: str = ""
    """What starts a thread in every Python process, "" if nothing does."""
    backend: str = ""
    """The backend of Keras that the user has chosen, as a sentence's beginning; "" for none."""
    backend_remedy: str = ""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a job needs of its surroundings."""

    workers: int = 1
    backend: str | None = None
    """The backend of Keras that the script itself sets, or TensorFlow if it has no Keras."""


def faults(found: Surroundings, wishes: Wishes) -> Iterator[str]:
    """Yield a sentence for each thing that keeps a job from running."""
    yield from filter(None, (rule(found, wishes) for rule in _RULES))


def refuse_faults(found: Surroundings, wishes: Wishes) -> None:
    """Refuse a job that could not run.

    Raises:
        UsageError: the first fault, with its remedy.
    """
    for sentence in faults(found, wishes):
        raise UsageError(sentence)


def surroundings(environment: Mapping[str, str]) -> Surroundings:
    """Look at this host."""
    backend, remedy = _backend(environment)
    return Surroundings(
        loopback=loopback_state(),
        threads_of=_starter_of_threads(environment),
        most_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        most_bytes=resource.getrlimit(resource.RLIMIT_FSIZE)[1],
        hidden=_hidden(environment.get("PYTHONPATH", "").split(os.pathsep)),
        backend=backend,
        backend_remedy=remedy,
    )


def _loopback(found: Surroundings, _: Wishes) -> str:
    match found.loopback:
        case Loopback.IS_DOWN:
            return "the loopback interface lo is down: `ip link set lo up`, then run again"
        case Loopback.HAS_NO_ADDRESS:
            return (
                "the loopback interface lo has no address 127.0.0.1: "
                "`ip addr add 127.0.0.1/8 dev lo`, then run again"
            )
    return ""


def _files(found: Surroundings, wishes: Wishes) -> str:
    least = _FILES_OF_AGENT + _FILES_OF_WORKER * wishes.workers
    if found.most_files == resource.RLIM_INFINITY or found.most_files >= least:
        return ""
    return (
        f"a process of this user may open {found.most_files} files, and the agent of "
        f"{count(wishes.workers, 'worker')} needs more than {least}: "
        "raise the limit (`ulimit -n`), or use fewer workers"
    )


def _file_size(found: Surroundings, _: Wishes) -> str:
    least = needed(Resource.SHARED_MEMORY, 1)
    if found.most_bytes == resource.RLIM_INFINITY or found.most_bytes >= least:
        return ""
    return (
        f"a process of this user may write files of {memory(found.most_bytes)}, and MPI has one of "
        f"{memory(least)}: raise the limit (`ulimit -f unlimited`)"
    )


def _packages(found: Surroundings, _: Wishes) -> str:
    for name, place in found.hidden.items():
        return (
            f"PYTHONPATH hides the package {name}: {place} is found first, and workers need "
            f"{name}: rename that file, or take {Path(place).parent} out of PYTHONPATH"
        )
    return ""


def _threads(found: Surroundings, _: Wishes) -> str:
    if not found.threads_of:
        return ""
    return (
        f"{found.threads_of} starts a thread in every Python process, and workers are forked from "
        "one with a single thread: start it in the script, or take that module out of Python's path"
    )


def _keras(found: Surroundings, wishes: Wishes) -> str:
    if wishes.backend is not None:
        text, remedy = f"the script sets {_BACKEND} to {wishes.backend}", f"let it set {TENSORFLOW}"
        is_fault = wishes.backend != TENSORFLOW
    else:
        text, remedy, is_fault = found.backend, found.backend_remedy, bool(found.backend)
    return f"{text}, and holdfast trains with TensorFlow: {remedy}" if is_fault else ""


_RULES: Sequence[Callable[[Surroundings, Wishes], str]] = (
    *(_loopback, _packages, _threads),
    *(_files, _file_size, _keras),
)


def _hidden(places: Sequence[str]) -> dict[str, str]:
    """Return the files in ``places`` that would be imported in the place of a package."""
    named = [os.path.abspath(place) for place in places if place]
    found = {}
    for name in PACKAGES:
        spec = PathFinder.find_spec(name, [*named, *sys.path])
        origin = None if spec is None else spec.origin
        is_file = spec is not None and not spec.submodule_search_locations
        if is_file and origin is not None and os.path.dirname(origin) in named:
            found[name] = origin
    return found


def _starter_of_threads(environment: Mapping[str, str]) -> str:
    """Return what has started a thread before the first line of a program.

    This process has had it, too.  Its own threads may be others, so a new process is asked then.
    """
    if thread_count() == 1:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return answer_of(program_command(_TELL_THREADS), _ASKS_FOR_S, environment).stdout.strip()
    return ""


def _backend(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the choice of another backend than TensorFlow, and what mends it; as Keras reads."""
    named = environment.get(_BACKEND)
    if named:
        text, remedy = f"{_BACKEND} is {named}", f"`export {_BACKEND}={TENSORFLOW}`, then run again"
        return ("", "") if named == TENSORFLOW else (text, remedy)
    file = _file_of_keras(environment)
    in_file = _backend_in(file)
    text, remedy = f"{file} names the backend {in_file}", f"`export {_BACKEND}={TENSORFLOW}`"
    return ("", "") if in_file == TENSORFLOW else (text, f"{remedy}, then run again")


def _file_of_keras(environment: Mapping[str, str]) -> Path:
    """Return the place of Keras's settings."""
    home = environment.get("HOME") or os.path.expanduser("~")
    base = home if os.access(home, os.W_OK) else "/tmp"
    return Path(environment.get("KERAS_HOME") or os.path.join(base, ".keras")) / "keras.json"


def _backend_in(file: Path) -> str:
    try:
        return str(json.loads(file.read_text(encoding="utf-8")).get("backend", TENSORFLOW))
    except (OSError, ValueError, AttributeError):
        return TENSORFLOW


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """A script as it was read; one that makes no sense imports nothing."""

    imported: frozenset[str] = frozenset()
    """The top-level names of all modules that it imports anywhere."""
    backend: str | None = None
    """The backend of Keras that it puts into its environment, None if it does not."""
    names_keras: bool = False

    @staticmethod
    def of(text: bytes) -> ScriptSource:
        """Return what the text of a script says."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return ScriptSource()
        backend = next(_backends(tree), None)
        names = frozenset(name.partition(".")[0] for name, level in imports(tree) if not level)
        return ScriptSource(names, backend, names_keras=b"keras" in text)

    @property
    def uses_keras(self) -> bool:
        """Whether it trains with Keras, by its own name or as a part of TensorFlow."""
        return self.names_keras and not self.imported.isdisjoint({"keras", "tensorflow"})

    @property
    def variables(self) -> dict[str, str]:
        """What it sets that warm processes must know: they import Keras before it runs."""
        return {} if self.backend is None else {_BACKEND: self.backend}


def _backends(tree: ast.AST) -> Iterator[str]:
    """Yield each backend that ``os.environ["KERAS_BACKEND"] = ...`` or ``setdefault`` sets."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Subscript(slice=ast.Constant(value=name))],
                value=ast.Constant(value=str(backend)),
            ) if name == _BACKEND:
                yield backend
            case ast.Call(
                func=ast.Attribute(attr="setdefault"),
                args=[ast.Constant(value=name), ast.Constant(value=str(backend))],
            ) if name == _BACKEND and _BACKEND not in os.environ:
                yield backend
