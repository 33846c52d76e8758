"""What to do about a model that fails on a part of a batch, and about batches of few samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.recovery.assignment import assign
from holdfast.recovery.world import World
from holdfast.runtime.errors import JobError


@contextmanager
def advice_on_parts(
    samples: int, microbatches: int, name: str, tell: Callable[[str], None]
) -> Iterator[None]:
    """Tell how to keep batches whole if the model ``name`` raises an error of its own.

    A model may be written for batches of one size, or for a first axis that does not count
    samples.  It trains in plain Keras, and fails on ``samples`` of a batch that is divided
    into ``microbatches`` parts.  The error itself goes on as it is.
    """
    try:
        yield
    except JobError:
        raise
    except Exception:
        if microbatches > 1:
            tell(
                f"{name!r} was tried on {samples} of the samples of a batch, which is divided into "
                f"{microbatches} microbatches along its first axis: if it needs the whole batch, "
                "run with --microbatches 1"
            )
        raise


def advice_on_few_samples(samples: int, microbatches: int, world: World) -> str | None:
    """Return how many workers have nothing to do in a step of ``samples``, None if all have."""
    if samples >= microbatches:
        return None
    busy = len(set(assign(microbatches, world).owners[:samples]))
    idle = len(world.active) - busy
    if not idle:
        return None
    return (
        f"batch_size {samples} in {microbatches} microbatches leaves {idle} of "
        f"{len(world.active)} workers without a sample: take batches of {microbatches} or more"
    )
