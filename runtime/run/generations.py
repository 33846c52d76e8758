"""The generations that a run has used, so that none is used again.

Generations name worlds and saves.  The journal tells the newest one, but it may be lost, or
its disk full.  So the store is asked as well: names of unfinished saves hold the generation
that made them, and so does the manifest of the newest step.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

from holdfast.checkpoint.format.names import (
    MANIFEST_NAME,
    StagingName,
    step_name,
    step_of,
)
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.journal import last_generation
from holdfast.runtime.run.own_file import ForeignFile, read_at_most
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.transient import refusal

_LARGEST_MANIFEST_BYTES = 256 << 20


def next_generation(directory: RunDirectory) -> int:
    """Return a generation that the run has not used.

    Raises:
        UsageError: the journal cannot be read.
        RunUnreadable: the same, but only just now.
    """
    path = directory.journal_path
    try:
        journalled = last_generation(path)
    except ForeignFile as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        sentence = f"{path} cannot be read: {error.strerror or error}; give this user access to it"
        raise refusal(path, error, sentence) from error
    return max(journalled, *_saved(directory), 0) + 1


def _saved(directory: RunDirectory) -> Iterator[int]:
    """Yield the generations of saves, finished and not, as far as they can be read."""
    with contextlib.suppress(OSError):
        names = os.listdir(directory.checkpoints_path)
        for name in names:
            save = StagingName.parse(name) or StagingName.parse_bad(name)
            if save is not None:
                yield save.generation
        newest = max((step for name in names if (step := step_of(name)) is not None), default=None)
        if newest is not None:
            yield _generation_of(directory, newest)


def _generation_of(directory: RunDirectory, step: int) -> int:
    path = directory.checkpoints_path / step_name(step) / MANIFEST_NAME
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = read_at_most(path, _LARGEST_MANIFEST_BYTES).decode()
        found, _ = json.JSONDecoder().raw_decode(content)  # a line with its digest follows
        generation = found.get("generation") if isinstance(found, dict) else None
        if isinstance(generation, int):
            return generation
    return 0
