"""What a node does for a Slurm job that has lost the node of its batch script.

An allocation with ``--no-kill`` goes on without a lost node, and be it the one of the batch script.
Then nothing of the job runs, but it keeps its other nodes until its limit.  Slurm (22.05) leaves it
so, even when the lost node is back.

So a host that has lost the head asks Slurm whether the script's node is still one of the job's.
When it was given up, the host has the job requeued.  Where sites switch that off, it ends the job,
and the next one of a chain begins.  Slurm gives a node up after its ``SlurmdTimeout``, five
minutes by default; after much more than that the head has ended by something else.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping

from holdfast.runtime.batch.sbatch import BatchNodes, SlurmRefused, cancel, nodes_of, requeue
from holdfast.runtime.batch.schedulers import Scheduler, find_allocation

_LOOK_S = 5.0
_LOOKS = 240


def bring_back(
    environ: Mapping[str, str],
    ask: Callable[[str], BatchNodes] = nodes_of,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Have the batch job around this process begin again, if it has lost its script's node.

    It returns at once outside of Slurm's batch jobs.  Slurm's SIGTERM ends the process meanwhile.
    """
    allocation = find_allocation(environ)
    if allocation is None or allocation.scheduler is not Scheduler.SLURM or not allocation.is_batch:
        return
    job = environ["SLURM_JOB_ID"]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for _ in range(_LOOKS):
        sleep(_LOOK_S)
        try:
            nodes = ask(job)
        except SlurmRefused:
            continue  # Slurm's controller may be on the lost node
        if not nodes.is_running:
            return
        if nodes.script_is_lost:
            try:
                requeue(job)  # Slurm gives no job a node that is down
            except SlurmRefused:
                cancel(job)
            return
