"""The processes of a job by what they are, from ``/proc`` alone.

``holdfast`` names its own processes.  mpiexec and its guards are found by their command
lines, and a guard's rank by its environment.  The supervisor is the process that was started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from holdfast.runtime.chaos.strike import Target
from holdfast.runtime.mpiexec import guard
from holdfast.runtime.system.marked_processes import command_line, variables_of

_NAMES = {
    Target.AGENT: "holdfast-agent",
    Target.POOL: "holdfast-pool",
    Target.WRITER: "holdfast-writer",
}
_WORKER = re.compile(r"holdfast-w(\d+)")
_RANK = re.compile(rb"OMPI_COMM_WORLD_RANK=(\d+)")
_MPIEXEC_LINE = "--with-ft\0ulfm"
_GUARD_END = f"\0-S\0{guard.__file__}\0"
"""The command line of a guard ends with its file; that of mpiexec goes on."""


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
        ranks = {pid: _rank_of_guard(pid) for pid in processes}
        return {rank: pid for pid, rank in ranks.items() if rank is not None}
    if target is Target.MPIEXEC:
        found = [pid for pid in processes if _MPIEXEC_LINE in command_line(pid)]
    else:
        found = [pid for pid, name in processes.items() if name == _NAMES[target]]
    return dict(enumerate(sorted(found)))


def choose_victim(
    target: Target, index: int, processes: Mapping[int, str], supervisor: int | None
) -> int | None:
    """Return the process that ``index``, modulo their number, chooses; None if there is none."""
    found = find_victims(target, processes, supervisor)
    return found[sorted(found)[index % len(found)]] if found else None


def _rank_of_guard(pid: int) -> int | None:
    if not command_line(pid).endswith(_GUARD_END):
        return None
    for variable in variables_of(pid):
        match = _RANK.fullmatch(variable)
        if match:
            return int(match[1])
    return None
