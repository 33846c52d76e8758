"""Another run in the directory of this one.

A user may remove or move a run directory while its job lives, and start another run there.
The lease is a new file then, so both jobs own the directory.  The id in ``RUN.json`` tells
whose it is.  A job whose directory belongs to another run writes nothing into it any more:
each of the two would take the other's checkpoints for its own, and remove its newest.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.errors import CommitRefused
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.run_directory import RunDirectory


def intruder_in(run_dir: Path, run_id: str) -> str | None:
    """Return the id of the run that ``run_dir`` belongs to, None unless that is another run."""
    try:
        record = RunDirectory(run_dir).load_record()
    except UsageError:
        return None
    return record.run_id if record is not None and record.run_id != run_id else None


def refuse_intruder(run_dir: Path, run_id: str) -> None:
    """Raise ``CommitRefused`` if ``run_dir`` belongs to another run than ``run_id``."""
    found = intruder_in(run_dir, run_id)
    if found is not None:
        raise CommitRefused(f"{run_dir} belongs to run {found} now, not to {run_id}; {_ADVICE}")


_ADVICE = "stop one of the two jobs, and move its run directory elsewhere"
