"""Which hosts a job leaves out when some of them do not reach each other.

Theory.  The head speaks to each host by a shell, but workers speak over the job's network.  Two
hosts that have lost each other there cannot both have workers of one world.  A set of hosts
explains what is broken if it has one of each such pair (a vertex cover).  The smallest set is left
out; of equally small ones that with the fewest workers, then that of the hosts that are named last.
The head's own host always stays: all ranks need mpiexec, which is there.

To find a smallest cover is hard for hundreds of hosts that fail at random.  But a cable, a switch
or a rule of a firewall breaks few pairs, or all pairs of one host.  Beyond two dozen hosts with a
broken pair, the one with most of them is taken, again and again.

Invariant: the hosts that stay all reach each other, and the first one stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

Pair: TypeAlias = "frozenset[str]"
"""Two hosts by their names."""

_MOST_EXACT = 24


def left_out(workers: Mapping[str, int], broken: Collection[Pair]) -> tuple[str, ...]:
    """Return the hosts that are left out, in the order of ``workers``.

    Args:
        workers: how many live on each host, that of the head first.
        broken: pairs that do not reach each other.
    """
    places = {name: place for place, name in enumerate(workers)}
    head = next(iter(workers))

    def cost(hosts: Collection[str]) -> tuple[int, int, list[int]]:
        return len(hosts), sum(workers[h] for h in hosts), sorted(-places[h] for h in hosts)

    beside_head = frozenset(name for pair in broken if head in pair for name in pair - {head})
    rest = _without(frozenset(broken), beside_head | {head})
    return tuple(sorted(beside_head | _cover(rest, cost), key=lambda name: places[name]))


def _cover(pairs: Collection[Pair], cost: Callable[[Collection[str]], Any]) -> Pair:
    """Return the cheapest set of hosts with one of each pair."""
    if not pairs:
        return frozenset()
    counts = Counter(sorted(name for pair in pairs for name in pair))
    most = max(counts, key=lambda name: counts[name])
    ways = [frozenset({most})]
    if len(counts) <= _MOST_EXACT:  # without that host, all its partners must go
        ways.append(frozenset(name for pair in pairs if most in pair for name in pair - {most}))
    return min((way | _cover(_without(pairs, way), cost) for way in ways), key=cost)


def _without(pairs: Collection[Pair], hosts: Pair) -> frozenset[Pair]:
    return frozenset(pair for pair in pairs if not pair & hosts)
