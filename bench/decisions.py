"""How long the decisions of a large world take: each is made by every worker, after every death.

    python bench/decisions.py [--hosts 1000] [--workers 10] [--lost 3] [--rounds 9]

No process and no network is needed.  Prints the processor time: median, least and most of the
rounds, and whether the median holds the bound of 100 ms.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import harness

from holdfast.recovery.host_reduction import host_roots, pieces_of
from holdfast.recovery.placement import HostSlots, place_workers, total_slots
from holdfast.recovery.reduction import maximal_nodes, plan_reduction
from holdfast.recovery.world import WorkerId, World, adopt, assign

_Result = TypeVar("_Result")

BOUND_MS = 100.0
FLOATS = 16 * 1024 * 1024
"""64 MiB of gradients."""


def main() -> None:
    options = _options()
    slots = [HostSlots(f"node{number}", options.workers) for number in range(options.hosts)]
    count = options.hosts * options.workers
    harness.print_heading(f"decisions of {count} workers on {options.hosts} hosts")
    for microbatches in (count, 2 * count, 2 * count + 1):
        print(f"{microbatches} microbatches, {options.lost} hosts are lost")
        for name, times in _measure(slots, microbatches, options.lost, options.rounds).items():
            spread = harness.Spread.of(times)
            holds = harness.verdict(holds=spread.median <= BOUND_MS)
            print(f"  {name:22} {spread.text(1):>26} ms; bound {BOUND_MS:.0f}: {holds}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=10, help="on each host")
    parser.add_argument("--lost", type=int, default=3, help="hosts that are lost at once")
    parser.add_argument("--rounds", type=int, default=9)
    return parser.parse_args()


def _measure(
    slots: list[HostSlots], microbatches: int, lost: int, rounds: int
) -> dict[str, list[float]]:
    """Return the milliseconds of each decision in each round."""
    times: dict[str, list[float]] = {}

    def timed(name: str, decide: Callable[[], _Result]) -> _Result:
        begin = time.process_time()
        decided = decide()
        times.setdefault(name, []).append(1000 * (time.process_time() - begin))
        return decided

    dead = {slot.name for slot in random.Random(microbatches).sample(slots, lost)}
    for _ in range(rounds):
        _decide(slots, microbatches, dead, timed)
    return times


class _Timed(Protocol):
    """Takes the time of a decision, and returns what was decided."""

    def __call__(self, name: str, decide: Callable[[], _Result]) -> _Result: ...


def _decide(slots: list[HostSlots], microbatches: int, dead: set[str], timed: _Timed) -> None:
    """Make all decisions about a world that loses its workers on the ``dead`` hosts."""
    count = total_slots(slots)
    workers = tuple(map(WorkerId, range(count)))
    names = timed("place workers", lambda: place_workers(count, slots))
    host_of = dict(zip(workers, names, strict=True))
    before = World(1, workers, count)
    assignment = timed("assign", lambda: assign(microbatches, before))
    alive = [worker for worker in workers if host_of[worker] not in dead]
    world = timed("shrink", lambda: before.shrunk_to(alive))
    adopted = timed("adopt", lambda: adopt(assignment, world, host_of))
    plan = timed("plan of ranks", lambda: plan_reduction(adopted, world, microbatches))
    left = [slot.name for slot in slots if slot.name not in dead]
    order = {name: number for number, name in enumerate(left)}
    hosts = [order[host_of[worker]] for worker in world.workers]
    timed("roots of hosts", lambda: host_roots(plan, hosts))
    timed("pieces of a rank", lambda: pieces_of(0, hosts, FLOATS))
    owned = timed("microbatches of one", lambda: adopted.owned_by(world.workers[0]))
    timed("nodes of one", lambda: maximal_nodes(owned, microbatches))


if __name__ == "__main__":
    main()
