"""Whether a host's limits suffice for a number of workers, before they start; pure."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.runtime.watch.usage import Resource, Usage

_NEEDS: dict[Resource, tuple[int, int]] = {
    Resource.SHARED_MEMORY: (0, 1 << 24),  # Open MPI's btl_sm_segment_size
    Resource.PROCESSES: (12, 6),
    Resource.FILES: (40, 9),
}
"""What the host's processes need by themselves, and for each worker.

Processes and files were counted in jobs of 2, 4 and 8 NumPy workers of one thread.  TensorFlow
starts more threads.
"""


def needed(resource: Resource, workers: int) -> int:
    """Return how much of ``resource`` a launch of ``workers`` takes at least."""
    base, each = _NEEDS[resource]
    return base + each * workers


def find_too_small(usages: Iterable[Usage], workers: int) -> list[Usage]:
    """Return the limits that leave too little for ``workers``."""
    return [
        usage
        for usage in usages
        if usage.resource in _NEEDS and usage.free < needed(usage.resource, workers)
    ]
