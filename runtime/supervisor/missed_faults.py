"""The faults of ``--inject`` that struck no worker, told at the end of a job.

Workers of a relaunch have larger ids, so a fault may wait for one that never comes.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.recovery.fault import Fault, parse_fault
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.journal import read_journal
from holdfast.runtime.run.run_directory import RunDirectory

_ADDRESS = ("worker", "step", "site", "attempt")


def missed_faults(options: JobOptions) -> Iterator[str]:
    """Yield a sentence for each fault that has not struck in this run."""
    if not options.faults:
        return
    try:
        records = read_journal(RunDirectory(options.run_dir).journal_path)
    except OSError:  # nobody knows what has struck
        return
    struck = {tuple(r.get(k) for k in _ADDRESS) for r in records if r["event"] == "fault"}
    last = options.workers + options.spares - 1
    for fault in map(parse_fault, options.faults):
        if _address(fault) not in struck:
            yield (
                f"--inject '{fault}' never struck: worker {fault.worker} never came there. "
                f"The workers of a first launch are 0 to {last}"
            )


def _address(fault: Fault) -> tuple[object, ...]:
    return (fault.worker, fault.step, fault.site.value, fault.attempt)
