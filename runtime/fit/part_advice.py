"""What to do about a model that fails on a part of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
