"""Where options come from: flags, ``HOLDFAST_*``, ``holdfast.toml``, batch job, or defaults.

``holdfast run`` builds its options here.  No other file reads an option from the environment.
A word that is no name of ours is answered with what is near it, or with the way instead of what
was removed.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.recovery.placement import total_slots
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import OPTIONS, JobOptions
from holdfast.runtime.options.option import RUN, Option, read_hostfile, read_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REMOVED: Mapping[str, str] = {
    "chaos": '`holdfast run -n 4 --fresh --inject "random seed=7 count=5" train.py` does this',
    "import": "a new run begins with other weights by `holdfast run --initial WEIGHTS train.py`",
    "init": "a script of plain Keras is run as it is: `holdfast run -n 4 train.py`",
    "sbatch": "`exec holdfast run train.py` is the last line of a batch script, and docs/hpc.md "
    "has whole ones: a job that is requeued, several nodes, a chain",
    "sweep": '`holdfast.launch("train.py", "--lr", lr, n=2, run_dir=f"lr-{lr}")` in Python is one '
    "trial, for a loop or for Optuna; history of its result has the metrics",
    "--compare": "`holdfast report RUN_DIR` shows one run; print both and compare them",
    "--drain-every": "saves go to the run directory beside the training; --save-every says when",
    "--format": "the name of the file says it: end it in .npz, .weights.h5 or .keras",
    "--keep-space": "--keep N says how many of the newest checkpoints stay",
    "--key-file": "digests find accidental damage; the permissions of RUN_DIR keep others out",
    "--local-dir": "saves go to the run directory beside the training; leave it out",
    "--metrics-host": "--metrics-file FILE is read by the textfile collector of Prometheus",
    "--metrics-port": "--metrics-file FILE is read by the textfile collector of Prometheus",
    "--repair-from": "`holdfast repair RUN_DIR --from DIR` puts whole files back between two jobs",
    "--scrub-every": "`holdfast verify RUN_DIR` reads all checkpoints; start it from cron",
    "--trace": "`holdfast status RUN_DIR` says what the steps of each worker are made of",
    "holdfast.ImageFolderData": "keras.utils.image_dataset_from_directory reads such a folder",
    "holdfast.TFRecordData": "tf.data.TFRecordDataset reads such files, and goes on at its place",
    **dict.fromkeys(
        ("holdfast.trial", "holdfast.Trial"),
        "each trial is a script of its own, which holdfast.launch runs with other arguments",
    ),
}
"""Commands, flags and names of Python; a flag is also a variable and a key of ``holdfast.toml``."""

_NEAR = 0.7
"""Two names that have so large a part of their letters in common differ by a slip."""

OF_SCRIPTS_TOO = frozenset({"--compare", "--format", "--trace"})
"""Flags that a script may well have, whose own options are not in its text."""

CONFIG_FILE = "holdfast.toml"

_PREFIX = "HOLDFAST_"

_PYTHON = re.compile(r"python[0-9.]*")
"""The first word of a command after `mpirun -n 4`, by habit."""

_OF_SERVICE = re.compile(
    r"(HOLDFAST\w*?)_(SERVICE_(HOST|PORT\w*)=|PORT_\d+_[A-Z]+\w*=|PORT=(tcp|udp|sctp)://).*"
)
"""What Kubernetes tells a pod of the services of its namespace."""

_OF_ALLOCATION, _NOWHERE = 3, 4
"""The number of the last source, and what comes behind it."""

_PATHS = frozenset(name for name, found in OPTIONS.items() if found.read is read_path)
_RELATIVE = _PATHS - {"mpiexec"}
"""Paths that are meant from the working directory; that of mpiexec may be a plain name."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything that options may stand in.

    Attributes:
        flags: values given on the command line, by field; those not given are absent.
        environ: the environment.
        table: the part of ``holdfast.toml`` that counts, by key.
        directory: the working directory, from which paths are meant.
        command: the command whose options are taken from environment and file.
        allocation: what the batch system has given, by field: its origin and the value.
    """

    flags: Mapping[str, Any]
    environ: Mapping[str, str]
    table: Mapping[str, Any]
    directory: Path
    command: str = RUN
    allocation: Mapping[str, tuple[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuiltOptions:
    """The options of a job, and where each that is no default came from, by field."""

    options: JobOptions
    origins: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Yield the options as a ``holdfast.toml``, with the origin of each as a comment."""
        yield f"# script: {_toml([self.options.script, *self.options.argv])}"
        yield f"[{RUN}]"
        for name, found in OPTIONS.items():
            if RUN in found.commands and found.flags:
                value, key = getattr(self.options, name), found.key.replace("_", "-")
                origin = self.origins.get(name, "default")
                if value is None:
                    yield f"# {key} is not set: {found.default_text or 'none'}  ({origin})"
                else:
                    yield f"{key} = {_toml(value)}  # {origin}"


def build_options(script: Path, argv: tuple[str, ...], sources: Sources) -> BuiltOptions:
    """Return the options of a job of ``script``, each from the first source that has it.

    Raises:
        UsageError: a value cannot be read or makes no sense; the message names its source.
    """
    values: dict[str, Any] = {"script": script, "argv": argv}
    origins: dict[str, str] = {}
    ranks: dict[str, int] = {}
    for name, found in OPTIONS.items():
        given = _given(name, found, sources)
        if given is not None:
            ranks[name], origins[name], value = given
            try:
                values[name] = found.read(value)
            except ValueError as error:
                raise UsageError(f"{_place(found, origins[name])}: {error}") from error
            if name not in sources.flags:
                found.refuse(values[name], _place(found, origins[name]))
    _read_hostfile(values, origins, ranks, sources.directory)
    if values.get("hosts") and ranks.get("workers", _NOWHERE) >= _OF_ALLOCATION:
        free = total_slots(values["hosts"]) - values.get("spares", 0)
        origins["workers"], values["workers"] = f"slots of {origins['hosts']}", max(1, free)
    values.setdefault("run_dir", default_run_dir(script, sources.directory))
    for name in _RELATIVE:
        if values.get(name) is not None:
            values[name] = sources.directory / values[name]
    return BuiltOptions(JobOptions(**values), origins)


def check_script(script: Path) -> None:
    """Refuse a script that cannot be read.

    Raises:
        UsageError: there is none, or it is no file of the user's.
    """
    if not script.exists():
        advice = "give the path of a Python file"
        if _PYTHON.fullmatch(script.name):
            advice = (
                "leave Python out, as in `holdfast run -n 4 train.py`: holdfast starts it itself"
            )
        raise UsageError(f"script {script} does not exist; {advice}")
    if not script.is_file() or not os.access(script, os.R_OK):
        raise UsageError(f"script {script} is not a readable file; give the path of a Python file")
    if script.suffix == ".ipynb":
        raise UsageError(
            f"{script} is a notebook; make a script of it: `jupyter nbconvert --to script {script}`"
        )


def seen_from(options: JobOptions, directory: Path) -> JobOptions:
    """Return options whose paths in the working directory begin with this other name of it."""
    here = Path.cwd()
    found = {name: getattr(options, name) for name in _RELATIVE}
    below = {name: path for name, path in found.items() if path and path.is_relative_to(here)}
    moved = {name: directory / path.relative_to(here) for name, path in below.items()}
    return replace(options, **moved)


def default_run_dir(script: Path, directory: Path) -> Path:
    """Return the run directory of a script for which none is named."""
    return directory / f"holdfast-{script.stem}"


def read_config_file(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a ``holdfast.toml``, one per command; none without a file.

    Option names may be written with dashes, as on the command line.

    Raises:
        UsageError: the file cannot be read or is no such file.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}; correct it or move it away") from error
    for name, table in content.items():
        if not isinstance(table, dict):
            raise UsageError(
                f"{path} sets {name!r} outside a table; "
                "options of `holdfast run` stand under the heading [run]"
            )
    return {
        command: {key.replace("-", "_"): value for key, value in table.items()}
        for command, table in content.items()
    }


def refuse_unknown(
    path: Path | str, heading: str, table: Mapping[str, Any], known: Iterable[str]
) -> None:
    """Raise ``UsageError`` for a table of a ``holdfast.toml`` that sets unknown options."""
    unknown = sorted(set(table).difference(known))
    for sentence in filter(None, map(removal_of_key, unknown)):
        raise UsageError(f"{path}, under [{heading}]: {sentence}")
    if unknown:
        raise UsageError(
            f"{path} sets unknown options under [{heading}]: {_as_typed(unknown)}; "
            f"known are {_as_typed(known)}"
        )


def _as_typed(keys: Iterable[str]) -> str:
    """Return keys with the dashes that a user types."""
    return ", ".join(key.replace("_", "-") for key in keys)


def mistyped_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable of a removed option, or of nearly an option's name.

    So it does for each service of Kubernetes whose name begins as those of our variables.
    """
    known = {option.variable for option in OPTIONS.values() if option.flags}
    names = {variable.removeprefix(_PREFIX) for variable in known}
    lines = {variable: f"{variable}={value}" for variable, value in environ.items()}
    services = {name: found[1] for name in lines if (found := _OF_SERVICE.fullmatch(lines[name]))}
    for service in sorted({name.lower().replace("_", "-") for name in services.values()}):
        yield (
            f"warning: the variables of the Kubernetes service {service} are ignored; "
            "enableServiceLinks: false in the pod keeps them out"
        )
    for variable in sorted(set(environ).difference(services)):
        name = variable.removeprefix(_PREFIX)
        if name == variable or name in names:
            continue
        removal = removal_of_key(name)
        near = nearest(name, names, form=f"{_PREFIX}{{}}")
        if removal is not None:
            yield f"warning: {variable} is ignored: {removal}"
        elif near:
            yield f"warning: {variable} is no option of holdfast and is ignored; {near}"


def keys_of(command: str) -> list[str]:
    """Return the names that the table of a command which takes options of a job may hold."""
    options = (option for option in OPTIONS.values() if option.flags)
    return sorted(option.key for option in options if command in option.commands)


def _read_hostfile(
    values: dict[str, Any], origins: dict[str, str], ranks: Mapping[str, int], directory: Path
) -> None:
    """Take the hosts of the hostfile, if it stands before other hosts.

    Raises:
        UsageError: it cannot be read, or the same place names hosts and a hostfile.
    """
    if "hostfile" not in values:
        return
    of_hosts, of_hostfile = (ranks.get(name, _NOWHERE) for name in ("hosts", "hostfile"))
    if of_hosts == of_hostfile:
        raise UsageError(
            f"{origins['hosts']} and {origins['hostfile']} both name hosts; leave out one of them"
        )
    if of_hosts < of_hostfile:
        del values["hostfile"], origins["hostfile"]
        return
    try:
        values["hosts"] = read_hostfile(directory / values["hostfile"])
    except ValueError as error:
        raise UsageError(f"{_place(OPTIONS['hostfile'], origins['hostfile'])}: {error}") from error
    origins["hosts"] = origins["hostfile"]


def _given(name: str, found: Option, sources: Sources) -> tuple[int, str, Any] | None:
    """Return the first source that has an option, by its number and name, and the value there."""
    flag = sources.flags.get(name)
    places = [(_flag_of(found, flag), flag)]
    if found.flags and sources.command in found.commands:
        places += [
            (found.variable, sources.environ.get(found.variable) or None),
            (CONFIG_FILE, sources.table.get(found.key)),
            sources.allocation.get(name, ("", None)),
        ]
    given = ((number, *place) for number, place in enumerate(places) if place[1] is not None)
    return next(given, None)


def _flag_of(found: Option, value: object) -> str:
    if found.off_flag is not None and value is False:
        return found.off_flag
    return found.flags[-1] if found.flags else "the command"


def _place(found: Option, origin: str) -> str:
    return f"{origin} {_as_typed([found.key])}" if origin == CONFIG_FILE else origin


def _toml(value: Any) -> str:
    """Return a value as TOML writes it: as JSON does, but without pairs of surrogates."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return "".join(c if " " <= c <= "~" else f"\\U{ord(c):08X}" for c in text)


def nearest(word: str, known: Iterable[str], otherwise: str = "", form: str = "{}") -> str:
    """Return the question whether a known name was meant, ``otherwise`` if none is near."""
    near = difflib.get_close_matches(word, list(known), 1, _NEAR)
    return f"did you mean {form.format(near[0])}?" if near else otherwise


def removal_of(name: str) -> str | None:
    """Return the sentence on a command, flag or name that was removed, None if it was none."""
    way = REMOVED.get(name)
    return None if way is None else f"{name} was removed: {way}"


def removal_of_key(key: str) -> str | None:
    """Return the sentence on a flag that was removed, by its name in a file or a variable."""
    return removal_of("--" + key.lower().replace("_", "-"))
