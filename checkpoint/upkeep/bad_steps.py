"""Damaged steps that were moved aside: the newest few are kept, since a mend may need them.

Without a bound a disk that rots fills up with what it has damaged, until saves fail.
Whose such a directory is, its manifest says.  One that says nothing may be another run's,
so it stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.format.names import StagingName
from holdfast.checkpoint.store.removal import hide
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.own_steps import OwnSteps

KEPT_ASIDE = 2
"""The damaged steps that stay: two directories of one step may complement each other."""


def bad_steps(names: Iterable[str]) -> tuple[StagingName, ...]:
    """Return the damaged steps among the names in a store: those of the newest step first."""
    parsed = ((StagingName.parse_bad(name), name) for name in names)
    found = [bad for bad, name in parsed if bad is not None and bad.bad_name == name]
    return tuple(sorted(found, key=_age_rank, reverse=True))


def spare_bad_steps(steps: OwnSteps, kept: int = KEPT_ASIDE) -> tuple[StagingName, ...]:
    """Return the run's own damaged steps but the newest ``kept``, oldest first.

    Raises ``StorageFailed`` if the store cannot be listed.
    """
    found = bad_steps(steps.store.names())
    own = [bad for bad in found if steps.has_bad(bad)] if len(found) > kept else []
    return tuple(reversed(own[kept:]))


def hide_bad_steps(store: CheckpointStore, bad: Sequence[StagingName], reasons: list[str]) -> None:
    """Give damaged steps the names of what is being removed, and tell of each."""
    for name in bad:
        try:
            hide(store.disk, store.directory / name.bad_name, name.removed_name)
        except StorageFailed as failure:
            reasons.append(str(failure))
        else:
            reasons.append(
                f"{name.bad_name} is removed: it was moved aside because it is damaged, and "
                "newer ones are kept"
            )


def _age_rank(bad: StagingName) -> tuple[int, int, int]:
    return bad.step, bad.generation, bad.attempt
