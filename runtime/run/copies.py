"""Copies of a run directory, which have its run's id: which one is meant, and whose files are.

A job makes its directory again when it is moved away.  The lease names the directory that it
was made in, so the moved one tells where the run is.

A local directory has the name of its run's id.  Two copies must not share one: each job
would restore the other's steps, and remove them.  So the first one that saves there writes down
its path.  Another one may take it over if nothing of the run is at that path any more.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.bounded_calls import BoundedCalls
from holdfast.runtime.run.lease import directory_in
from holdfast.runtime.run.own_file import create_durably, move, read_at_most, sync_names
from holdfast.runtime.run.run_directory import RunDirectory

HOME_NAME = "run-directory"
_LARGEST_BYTES = 1 << 15


def moved_to(directory: RunDirectory) -> Path | None:
    """Return where the run is, if a directory was moved or copied from there.

    None if that cannot be told, or if the disk of that place does not answer within a second.
    """
    found: list[Path] = []

    def look() -> None:
        with contextlib.suppress(OSError, ValueError, UsageError):
            place, run = directory_in(directory.lease_owner()), directory.load_record()
            if place is None or run is None:
                return
            if _is_copy(place, directory.path, run.run_id):
                found.append(place)

    calls = BoundedCalls("holdfast-copies")
    calls.run(look)
    calls.close(0.0)
    return found[0] if found else None


def claim(local: Path, run_dir: Path) -> None:
    """Write down that ``local`` belongs to ``run_dir``, unless it says so already.

    Raises ``OSError`` if it cannot be written.
    """
    if home_of(local) == run_dir:
        return
    path, draft = local / HOME_NAME, local / f".{HOME_NAME}"
    draft.unlink(missing_ok=True)
    create_durably(draft, json.dumps({"run_dir": str(run_dir)}).encode() + b"\n")
    move(draft, path)
    sync_names(local)


def another_home(local_dir: Path, other: Path, run_dir: Path) -> str:
    """Return in words why a run directory cannot have a local directory."""
    return (
        f"--local-dir {local_dir} holds the checkpoints of {other}, and {run_dir} is a copy of "
        "that run; give another --local-dir"
    )


def other_home(local: Path, run_dir: Path, run_id: str) -> Path | None:
    """Return the other directory of the run that ``local`` belongs to, None if there is none."""
    home = home_of(local)
    if home is None or home == run_dir:
        return None
    with contextlib.suppress(OSError, UsageError):
        return home if _is_copy(home, run_dir, run_id) else None
    return None


def _is_copy(place: Path, run_dir: Path, run_id: str) -> bool:
    """Return whether another directory, ``place``, holds the run as well."""
    if place.samefile(run_dir):
        return False
    record = RunDirectory(place).load_record()
    return record is not None and record.run_id == run_id


def home_of(local: Path) -> Path | None:
    """Return the path that ``local`` names, None without one that can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return Path(json.loads(read_at_most(local / HOME_NAME, _LARGEST_BYTES))["run_dir"])
    return None
