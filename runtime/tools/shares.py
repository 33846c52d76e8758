"""What workers spend the time of their steps on, and which one is slow; pure.

All workers of a world take a step together.  So a slow one shows in the others: they wait for it,
and it waits for nobody.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from holdfast.runtime.run.progress import WorkerReport
from holdfast.runtime.system.timeline import WAITING, Activity

_OF_STEPS = [one for one in Activity if Activity.READ <= one <= Activity.COPY]
_FOR_PEERS = {one.label for one in WAITING}
_SHOWN_FROM = 0.01
_SLOW_FROM = 0.1
"""A worker is slow for which the others wait for this part of their time."""


def _shares_of(worker: WorkerReport) -> Mapping[str, float]:
    """Return the parts of the time of its steps, the largest first; none before its first step."""
    spent = {one.label: worker.spent_s.get(one.label, 0.0) for one in _OF_STEPS}
    total = sum(spent.values())
    shares = {name: seconds / total for name, seconds in spent.items() if seconds}
    return dict(sorted(shares.items(), key=lambda found: -found[1]))


def shares_in_words(worker: WorkerReport) -> str:
    """Return the parts of the time of its steps, but for the smallest."""
    shares = _shares_of(worker).items()
    return ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= _SHOWN_FROM)


def slowest_in_words(workers: Sequence[WorkerReport]) -> str:
    """Say for which worker the others wait, if they wait for long."""
    told = {worker.worker: shares for worker in workers if (shares := _shares_of(worker))}
    waits = {one: sum(shares.get(name, 0.0) for name in _FOR_PEERS) for one, shares in told.items()}
    if len(waits) < 2:
        return ""
    slowest = min(workers, key=lambda worker: waits.get(worker.worker, 2.0))
    others = statistics.fmean(waits[one] for one in waits if one != slowest.worker)
    if others - waits[slowest.worker] < _SLOW_FROM:
        return ""
    host = f" on {slowest.host}" if slowest.host else ""
    busy = next(name for name in told[slowest.worker] if name not in _FOR_PEERS)
    return (
        f"worker {slowest.worker}{host}, most of it in {busy}: the others wait for {others:.0%} of "
        f"their time, and it for {waits[slowest.worker]:.0%}"
    )
