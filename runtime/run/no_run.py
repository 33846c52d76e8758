"""A path that is no run: one sentence for all commands, with the runs that are near it.

The directory that a run has below ``--local-dir`` holds checkpoints and no job's files.  So it
is as good as a copy for commands that read checkpoints, and no place to ask for a job.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.copies import home_of
from holdfast.runtime.run.run_directory import LOCAL_PREFIX, RunDirectory
from holdfast.runtime.run.transient import is_there, refusal

_MOST_NAMED = 3
_MOST_ENTRIES = 1000
"""Of a folder that is looked through: a sentence must not take long."""

_LOCAL_NAME = re.compile(rf"{re.escape(LOCAL_PREFIX)}([0-9a-f]{{16}})")
"""As ``RunRecord.new_id`` makes the id: other names with this prefix are the user's."""


def no_run(path: Path) -> str | None:
    """Return why ``path`` is no run, and which runs are near it; None if it is one.

    A run that has lost its ``RUN.json`` is still one, and so is a copy of checkpoints alone.

    Raises:
        RunUnreadable: that cannot be told just now.
    """
    directory = RunDirectory(path)
    if _has(path, directory.checkpoints_path) or _is_owned(directory):
        return None
    why = "it has no RUN.json" if os.path.isdir(path) else "it is no directory"
    near = list(itertools.islice(_near(path), _MOST_NAMED))
    runs = f"runs near it: {', '.join(near)}" if near else "give the directory of a run"
    return f"{path} is no run: {why}; {runs}"


def refuse_no_run(path: Path) -> None:
    """Refuse a path that is no run.

    Raises:
        UsageError: it is none; one sentence says why.
    """
    _refuse(no_run(path))


def no_job(path: Path) -> str | None:
    """Return why no job can be found at ``path``; None if it is a run directory.

    Raises:
        RunUnreadable: that cannot be told just now.
    """
    return no_run(path) or _local_directory(path)


def refuse_no_job(path: Path) -> None:
    """Refuse a path at which no job can be found.

    Raises:
        UsageError: it is no run directory; one sentence says why.
    """
    _refuse(no_job(path))


def refuse_local_directory(path: Path) -> None:
    """Refuse the local directory of a run for another run: its steps are that run's.

    Raises:
        UsageError: it is one; the sentence names the run.
    """
    _refuse(_local_directory(path))


def _refuse(sentence: str | None) -> None:
    if sentence is not None:
        raise UsageError(sentence)


def _local_directory(path: Path) -> str | None:
    """Return, in words, that ``path`` is the local directory of a run; None if it is not."""
    found = _LOCAL_NAME.fullmatch(Path(os.path.abspath(path)).name)
    directory = RunDirectory(path)
    if found is None or _is_owned(directory) or not _has(path, directory.checkpoints_path):
        return None
    home = home_of(path)
    wanted = "the run directory of that run" if home is None else f"its run directory, {home}"
    return (
        f"{path} is the local directory of run {found[1]}: its checkpoints here are seen by "
        f"`holdfast inspect` and `holdfast verify`, and for all else give {wanted}"
    )


def _is_owned(directory: RunDirectory) -> bool:
    """Return whether a job has written more into the directory than checkpoints."""
    files = (directory.record_path, directory.journal_path, directory.lease_path)
    return any(_has(directory.path, file) for file in files)


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
