"""The processes of a job by what they are, from ``/proc`` alone.

``holdfast`` names its own processes.  mpiexec and its guards are found by their command
lines, and a guard's rank by its environment.  The supervisor is the process that was started.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from holdfast.runtime.chaos.strike import Target
from holdfast.runtime.mpiexec import guard
from holdfast.runtime.system.marked_processes import command_line, variables_of

_NAMES = {
    Target.AGENT: "holdfast-agent",
    Target.POOL: "holdfast-pool",
    Target.WRITER: "holdfast-writer",
}
_WORKER = re.compile(r"holdfast-w(\d+)")
_RANK = re.compile(rb"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)")
_GUARD_END = f"\0-S\0{guard.__file__}\0"
"""The command lines of mpiexec and of its guards end so; only a guard has a rank."""


def find_victims(
    target: Target, processes: Mapping[int, str], supervisor: int | None
) -> dict[int, int]:
    """Return the ids of the processes of one kind, by worker id, by rank, or by 0.

    ``processes`` are those of one job, with their names.
    """
    if target is Target.SUPERVISOR:
        return {} if supervisor is None else {0: supervisor}
    if target is Target.WORKER:
        named = {pid: _WORKER.fullmatch(name) for pid, name in processes.items()}
        return {int(match[1]): pid for pid, match in named.items() if match}
    if target is Target.GUARD:
        ranks = {pid: _rank_of(pid) for pid in _started_with_guard(processes)}
        return {rank: pid for pid, rank in ranks.items() if rank is not None}
    if target is Target.MPIEXEC:
        found = [pid for pid in _started_with_guard(processes) if _rank_of(pid) is None]
    else:
        found = [pid for pid, name in processes.items() if name == _NAMES[target]]
    return dict(enumerate(sorted(found)))


def choose_victim(
    target: Target, index: int, processes: Mapping[int, str], supervisor: int | None
) -> int | None:
    """Return the process that ``index``, modulo their number, chooses; None if there is none."""
    found = find_victims(target, processes, supervisor)
    return found[sorted(found)[index % len(found)]] if found else None


def _started_with_guard(processes: Iterable[int]) -> list[int]:
    """Return mpiexec and its guards."""
    return [pid for pid in processes if command_line(pid).endswith(_GUARD_END)]


def _rank_of(pid: int) -> int | None:
    for variable in variables_of(pid):
        match = _RANK.fullmatch(variable)
        if match:
            return int(match[1])
    return None
