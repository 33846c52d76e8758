"""Which run a path means, or why it means none.

A path that is no run is refused in one sentence for all commands, with the runs that are near it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.files import is_there, refusal
from holdfast.runtime.run.run_directory import RunDirectory

_MOST_NAMED = 3
_MOST_LISTED = 10

_MOST_ENTRIES = 1000
"""Of a folder that is looked through: a sentence must not take long."""


def no_run(path: Path) -> str | None:
    """Return why ``path`` is no run, and which runs are near it; None if it is one.

    A run that has lost its ``RUN.json`` is still one, and so is a copy of checkpoints alone.

    Raises:
        RunUnreadable: that cannot be told just now.
    """
    run = RunDirectory(path)
    files = (run.checkpoints_path, run.record_path, run.journal_path, run.lease_path)
    if any(_has(path, file) for file in files):
        return None
    near = list(itertools.islice(_near(path), _MOST_NAMED))
    runs = f"runs near it: {', '.join(near)}" if near else "give the directory of a run"
    if not os.path.lexists(path):
        return f"{path} does not exist; {runs}"
    why = "it has no RUN.json" if os.path.isdir(path) else "it is a file"
    return f"{path} is no run: {why}; {runs}"


def refuse_no_run(path: Path) -> None:
    """Refuse a path that is no run.

    Raises:
        UsageError: it is none; one sentence says why.
    """
    sentence = no_run(path)
    if sentence is not None:
        raise UsageError(sentence)


def the_run_here(command: str, lives: Callable[[Path], bool], *, or_living: bool) -> Path:
    """Return the only run of the working directory, or the working directory if it is one.

    If there are several, the only one that ``lives`` will do as well if ``or_living``.

    Raises:
        UsageError: there is none, or there are several; the sentence names them.
    """
    runs = [Path()] if _is_begun(Path()) else _begun_in(Path())
    if not runs:
        raise UsageError(
            f"no run is in {Path.cwd()}; name its directory, as in `{command} RUN_DIR` "
            "(`holdfast list DIR` finds runs below a directory)"
        )
    if len(runs) == 1:
        return runs[0]
    living = list(filter(lives, runs))
    if len(living) == 1 and or_living:
        return living[0]
    names = [f"{run} (running)" for run in living]
    names += [str(run) for run in runs if run not in living]
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    raise UsageError(
        f"{len(runs)} runs are here: {', '.join(names[:_MOST_LISTED])}{more}; name one, as in "
        f"`{command} {[*living, *runs][0]}`"
    )


def runs_below(folder: Path) -> Iterator[Path]:
    """Yield the runs in a directory and below it, by name; a run is not looked into.

    Links and hidden directories are left out.
    """
    for place, folders, _ in os.walk(folder):
        if _is_begun(Path(place)):
            yield Path(place)
            folders.clear()
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def _has(path: Path, file: Path) -> bool:
    try:
        return is_there(file)
    except OSError as error:
        raise refusal(path, error, f"{path} cannot be looked at: {error}") from error


def _near(path: Path) -> Iterator[str]:
    """Yield the runs around a path: one that it lies in, those within it, those beside it."""
    absolute = Path(os.path.abspath(path))  # not resolve(): a link to itself is no error here
    yield from (str(outer) for outer in absolute.parents if _is_begun(outer))
    yield from map(str, _begun_in(path))
    if path.name:
        yield from map(str, _begun_in(path.parent))


def _begun_in(folder: Path) -> list[Path]:
    """Return the runs that lie in a folder, by name."""
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        names += sorted(entry.name for entry in itertools.islice(entries, _MOST_ENTRIES))
    return [folder / name for name in names if _is_begun(folder / name)]


def _is_begun(folder: Path) -> bool:
    """Return whether a job has begun a run here."""
    return os.path.lexists(RunDirectory(folder).record_path)
