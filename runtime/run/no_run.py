"""A path that is no run: one sentence for all commands, with the runs that are near it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.run_directory import LOCAL_PREFIX, RunDirectory
from holdfast.runtime.run.transient import is_there, refusal

_MOST_NAMED = 3
_MOST_ENTRIES = 1000
"""Of a folder that is looked through: a sentence must not take long."""


def no_run(path: Path) -> str | None:
    """Return why ``path`` is no run, and which runs are near it; None if it is one.

    A run that has lost its ``RUN.json`` is still one, and so is a copy of checkpoints alone.

    Raises:
        RunUnreadable: that cannot be told just now.
    """
    directory = RunDirectory(path)
    files = (
        directory.record_path,
        directory.journal_path,
        directory.checkpoints_path,
        directory.lease_path,
    )
    try:
        if any(map(is_there, files)):
            return None
    except OSError as error:
        raise refusal(path, error, f"{path} cannot be looked at: {error}") from error
    why = "it has no RUN.json" if os.path.isdir(path) else "it is no directory"
    near = list(itertools.islice(_near(path), _MOST_NAMED))
    runs = f"runs near it: {', '.join(near)}" if near else "give the directory of a run"
    return f"{path} is no run: {why}; {runs}"


def refuse_no_run(path: Path) -> None:
    """Refuse a path that is no run.

    Raises:
        UsageError: it is none; one sentence says why.
    """
    sentence = no_run(path)
    if sentence is not None:
        raise UsageError(sentence)


def _near(path: Path) -> Iterator[str]:
    """Yield the runs around a path: one that it lies in, those within it, those beside it."""
    absolute = Path(os.path.abspath(path))  # not resolve(): a link to itself is no error here
    yield from (str(outer) for outer in absolute.parents if _is_begun(outer))
    yield from map(str, _begun_in(path))
    if path.name:
        yield from map(str, _begun_in(path.parent))


def _begun_in(folder: Path) -> list[Path]:
    """Return the runs that lie in a folder, by name."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_ENTRIES)]
    except OSError:
        return []
    return [folder / name for name in sorted(names) if _is_begun(folder / name)]


def _is_begun(folder: Path) -> bool:
    """Return whether a job has begun a run here, or keeps local checkpoints of one."""
    run = RunDirectory(folder)
    is_local = folder.name.startswith(LOCAL_PREFIX) and os.path.lexists(run.checkpoints_path)
    return is_local or os.path.lexists(run.record_path)
