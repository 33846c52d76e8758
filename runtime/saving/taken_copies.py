"""What a run takes from its place of copies when a job of it begins.

The place is asked before the record of the run is opened.  So a run whose directory is gone goes on
from the place, and the copies of another run are refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from holdfast.checkpoint.errors import TRANSIENT, CheckpointError, StorageFailed
from holdfast.checkpoint.repair import mend_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import RunUnreadable, UsageError
from holdfast.runtime.run.files import write_whole
from holdfast.runtime.run.place import Place, reason_of
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord


def take_copies(
    directory: RunDirectory,
    url: str,
    say: Callable[[str], None],
    refuse: Callable[[RunRecord], None],
    *,
    is_fresh: bool,
) -> tuple[str, ...]:
    """Take what a run directory lacks, and a place has; return what there is to tell of it.

    A place that does not answer is left alone, unless the run may be nowhere else.  ``refuse``
    raises for the record of a run that this job would not go on with.

    Raises:
        UsageError: the place has the copies of another run, or none of its steps can be used.
        RunUnreadable: nobody knows just now whether the run is there.
    """
    place = Place(url)
    newest = None if is_fresh else directory.newest_step
    try:
        theirs, there = place.record(), place.store.steps()
    except (OSError, StorageFailed) as error:
        reason = reason_of(error)
        if newest is not None:
            return (f"{url} was not asked for newer steps: {reason}",)
        kind = RunUnreadable if error.errno in TRANSIENT else UsageError
        raise kind(
            f"{url} cannot be read: {reason}; it may hold this run, and {directory.path} has no "
            "checkpoint: run again when it can be read, or leave --copy-to out to begin anew"
        ) from error
    ours = directory.load_record()
    place.refuse_others(theirs, ours)
    if theirs is None:
        return ()
    if is_fresh:
        raise UsageError(
            f"{url} holds run {theirs.run_id}, and --fresh begins another one; give that a URL of "
            "its own by --copy-to, or remove what is there"
        )
    if ours is None:
        if there:  # a run without a step takes any script
            refuse(theirs)
        directory.create_record(theirs)
    if not there or (newest is not None and newest >= there[0]):
        return ()
    say(f"taking checkpoints from {url}, of which step {there[0]} is the newest")
    _take_script_files(place, directory)
    told = tuple(_take_steps(place, directory, theirs.run_id))
    if directory.newest_step is None:
        raise RunUnreadable(
            f"none of the steps in {url} can be used: {'; '.join(told)}; `holdfast verify {url}` "
            "tells more, and without --copy-to the run begins anew"
        )
    return told


def _take_steps(place: Place, directory: RunDirectory, run_id: str) -> Iterator[str]:
    """Take all steps that are not here, newest first; yield a sentence on each.

    Older ones have the results of trainings that are over, and serve if a newer one is damaged.
    """
    here = CheckpointStore(directory.path)
    known = here.steps()
    for step in [step for step in place.store.steps() if step not in known]:
        try:
            mend_step(here, place.store, step, run_id=run_id)
            yield f"took step {step} from {place.url}"
        except CheckpointError as error:
            yield f"step {step} in {place.url} is left out: {error.reason}"


def _take_script_files(place: Place, directory: RunDirectory) -> None:
    """Take what the script has read and drawn before: it counts for all launches of the run."""
    for path in place.script_files():
        target = directory.path / path.relative_to(place.path)
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            write_whole(target, place.store.disk.content(path), is_durable=True)
