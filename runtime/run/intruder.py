"""Another run in the directory of this one.

A user may remove or move a run directory while its job lives, and start another run there.
The lease is a new file then, so both jobs own the directory.  The id in ``RUN.json`` tells
whose it is.  `ownership` keeps a job from changing another one's checkpoints.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.run_directory import RunDirectory


def intruder_in(run_dir: Path, run_id: str) -> str | None:
    """Return the id of the run that ``run_dir`` belongs to, None unless that is another run."""
    try:
        record = RunDirectory(run_dir).load_record()
    except UsageError:
        return None
    return record.run_id if record is not None and record.run_id != run_id else None
