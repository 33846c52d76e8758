"""The check that all workers are about to do the same work, on the same data.

Every worker runs the whole script.  A script that draws its data from an unseeded generator
has other data on each worker, and trains on a mixture that no run would give again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.training.training_job import TrainingJob
from holdfast.runtime.worker.context import WorkerContext


def check_same_work(context: WorkerContext, communicator: Communicator, job: TrainingJob) -> None:
    """Compare the job of all workers of the world with that of rank 0.

    Raises:
        ProgramError: they differ; raised on all workers alike.
        WorldBroken: a member died.
    """
    cards = communicator.allgather_bytes(json.dumps(job.card).encode())
    everyones = [json.loads(card) for card in cards]
    for rank, theirs in enumerate(everyones):
        name = _first_difference(everyones[0], theirs)
        if name is not None:
            workers = context.config.workers
            raise ProgramError(
                f"{name} of worker {workers[rank]} is {theirs.get(name)}, and that of worker "
                f"{workers[0]} is {everyones[0].get(name)}: every worker runs the whole script, so "
                "all must see the same; seed every random generator, and sort lists of files"
            )


def _first_difference(mine: Mapping[str, object], theirs: Mapping[str, object]) -> str | None:
    names = [*mine, *(name for name in theirs if name not in mine)]
    return next((name for name in names if mine.get(name) != theirs.get(name)), None)
