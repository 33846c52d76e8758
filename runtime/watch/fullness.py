"""Uses that are close to their limit, each told once; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.runtime.watch.usage import Resource, Usage

FULL = 0.9
ROOMY_AGAIN = 0.8


@dataclass(frozen=True, slots=True)
class Fullness:
    """The uses that were told to be above 90 %; each look makes a new one.

    A use is told again only after it has been below 80 %.
    """

    news: tuple[Usage, ...] = ()
    _told: frozenset[tuple[Resource, str]] = frozenset()

    def observe(self, usages: Iterable[Usage]) -> Fullness:
        """Return the fullness after a look at all ``usages``; ``news`` are those to be told."""
        looked_at = list(usages)
        roomy = {_key(usage) for usage in looked_at if usage.share < ROOMY_AGAIN}
        told = self._told - roomy
        news = tuple(u for u in looked_at if u.share > FULL and _key(u) not in told)
        return Fullness(news, told | {_key(usage) for usage in news})


def _key(usage: Usage) -> tuple[Resource, str]:
    return usage.resource, usage.place
