"""The check that numerics agree: a difference is a warning, or an error under ``--strict``."""

from __future__ import annotations

import json

from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.run.numerics import Numerics, differences, refuse_differences
from holdfast.runtime.worker.context import WorkerContext


def check_peers(context: WorkerContext, membership: Membership, mine: Numerics) -> None:
    """Compare the numerics of all workers of the world with those of rank 0.

    Raises:
        UsageError: they differ and the job is strict; raised on all workers alike.
        WorldBroken: a member died.
    """
    cards = membership.communicator.allgather_bytes(json.dumps(mine.to_json()).encode())
    everyones = [Numerics.from_json(json.loads(card)) for card in cards]
    workers = membership.world.workers
    for worker, theirs in zip(workers, everyones, strict=True):
        subject = f"worker {worker} has other numerics than worker {workers[0]}"
        _judge(context, subject, differences(everyones[0], theirs, f"worker {workers[0]} has"))


def check_resumed(context: WorkerContext, before: Numerics, now: Numerics) -> None:
    """Compare the numerics of a checkpoint with this job's.

    Raises:
        UsageError: they differ and the job is strict.
    """
    subject = f"the numerics of the run in {context.run_dir} have changed"
    _judge(context, subject, differences(before, now, "the checkpoint was made with"))


def _judge(context: WorkerContext, subject: str, found: tuple[str, ...]) -> None:
    if context.config.options.strict:
        refuse_differences(subject, found)
    if found:
        context.journal.record("numerics_differ", differences=list(found))
        context.notify(f"{subject}: {'; '.join(found)}: its bytes may differ")
