"""What must hold before anything of a job is started, each with the way to mend it.

A launch without one of these fails after a while, and its message names something else.  The rules
are a sentence each.  A `ScriptSource` is what a script says of itself before it runs: its imports,
and the Keras backend that it sets.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from holdfast.runtime.host.limits import needed
from holdfast.runtime.run.program import imports
from holdfast.runtime.run.progress import count, memory
from holdfast.runtime.system.network import Loopback, loopback_state
from holdfast.runtime.system.own_process import Resource, answer_of, program_command, thread_count

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


def host_faults(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each thing of this host that keeps any job from running."""
    packages = _packages(environment.get("PYTHONPATH", "").split(os.pathsep))
    yield from filter(None, (_loopback(loopback_state()), packages, _threads(environment)))


def job_faults(
    environment: Mapping[str, str], workers: int = 1, backend: str | None = None
) -> Iterator[str]:
    """Yield a sentence for each thing that keeps a job of so many workers from running.

    ``backend`` is that of Keras which the script itself sets, or TensorFlow if it has no Keras.
    """
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, most_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)
    rules = _files(most_files, workers), _file_size(most_bytes), _keras(environment, backend)
    yield from filter(None, rules)


def _loopback(state: Loopback) -> str:
    match state:
        case Loopback.IS_DOWN:
            return "the loopback interface lo is down: `ip link set lo up`, then run again"
        case Loopback.HAS_NO_ADDRESS:
            return (
                "the loopback interface lo has no address 127.0.0.1: "
                "`ip addr add 127.0.0.1/8 dev lo`, then run again"
            )
    return ""


def _files(most: int, workers: int) -> str:
    """Return why this user cannot open enough files, "" if he can."""
    least = _FILES_OF_AGENT + _FILES_OF_WORKER * workers
    if most == resource.RLIM_INFINITY or most >= least:
        return ""
    return (
        f"a process of this user may open {most} files, and the agent of "
        f"{count(workers, 'worker')} needs more than {least}: "
        "raise the limit (`ulimit -n`), or use fewer workers"
    )


def _file_size(most: int) -> str:
    least = needed(Resource.SHARED_MEMORY, 1)
    if most == resource.RLIM_INFINITY or most >= least:
        return ""
    return (
        f"a process of this user may write files of {memory(most)}, and MPI has one of "
        f"{memory(least)}: raise the limit (`ulimit -f unlimited`)"
    )


def _packages(places: Sequence[str]) -> str:
    """Return which file in ``places`` would be imported in the place of a package, "" if none."""
    named = [os.path.abspath(place) for place in places if place]
    for name in PACKAGES:
        spec = PathFinder.find_spec(name, [*named, *sys.path])
        file = None if spec is None or spec.submodule_search_locations else spec.origin
        if file is not None and os.path.dirname(file) in named:
            return (
                f"PYTHONPATH hides the package {name}: {file} is found first, and workers need "
                f"{name}: rename that file, or take {os.path.dirname(file)} out of PYTHONPATH"
            )
    return ""


def _threads(environment: Mapping[str, str]) -> str:
    """Return what has started a thread before the first line of a program, "" if nothing has.

    This process has had it, too.  Its own threads may be others, so a new process is asked then.
    """
    starter = ""
    if thread_count() > 1:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            told = answer_of(program_command(_TELL_THREADS), _ASKS_FOR_S, environment)
            starter = told.stdout.strip()
    return starter and (
        f"{starter} starts a thread in every Python process, and workers are forked from "
        "one with a single thread: start it in the script, or take that module out of Python's path"
    )


def _keras(environment: Mapping[str, str], backend: str | None) -> str:
    """Return why Keras would not train with TensorFlow: by the script, or else as Keras reads."""
    named, remedy = environment.get(_BACKEND), f"`export {_BACKEND}={TENSORFLOW}`, then run again"
    if backend is not None:
        text, remedy = f"the script sets {_BACKEND} to {backend}", f"let it set {TENSORFLOW}"
    elif named:
        backend, text = named, f"{_BACKEND} is {named}"
    else:
        file = _file_of_keras(environment)
        backend = _backend_in(file)
        text = f"{file} names the backend {backend}"
    is_fault = backend != TENSORFLOW
    return f"{text}, and holdfast trains with TensorFlow: {remedy}" if is_fault else ""


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
    uses_keras: bool = False
    """Whether it trains with Keras, by its own name or as a part of TensorFlow."""

    @staticmethod
    def of(text: bytes) -> ScriptSource:
        """Return what the text of a script says."""
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            return ScriptSource()
        backend = next(_backends(tree), None)
        names = frozenset(name.partition(".")[0] for name, level in imports(tree) if not level)
        uses_keras = b"keras" in text and not names.isdisjoint({"keras", "tensorflow"})
        return ScriptSource(names, backend, uses_keras)

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
