"""A trial of an MPI is one launch within bounds: an MPI that hangs has failed.

Version numbers do not tell: ULFM may be compiled out, switched off by a site, or belong to
another library than the one that mpi4py loads.  So ranks are started and killed, and the
others must go on (`rank`).  A trial has a private directory, and leaves nothing behind.
"""

from __future__ import annotations

import os
import select
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from holdfast.runtime.host.launchers import ON_ONE_HOST, LaunchLine, LaunchTerms
from holdfast.runtime.host.mpi_host import MpiLaunch
from holdfast.runtime.mpi.mpi_library import MpiLibrary
from holdfast.runtime.mpi.trial import Outcome, RankReport, Trial, judge
from holdfast.runtime.system.codec import decode, encode
from holdfast.runtime.system.own_process import module_command
from holdfast.runtime.system.witnessed_time import Bound

_TRIAL_TIMEOUT_S = 45.0
"""A hundred times what it takes: a busy machine must not be told that its MPI is unfit."""


def run_trial(
    library: MpiLibrary,
    environment: Mapping[str, str],
    trial: Trial,
    terms: LaunchTerms = ON_ONE_HOST,
    *,
    timeout_s: float = _TRIAL_TIMEOUT_S,
) -> Outcome:
    """Run one trial to its end or the timeout; leaves nothing behind.

    All ranks are on this host, and use the network and the settings of ``terms``.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-trial-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        line = LaunchLine(
            mpiexec=library.mpiexec,
            ranks=trial.ranks,
            directory=directory,
            guard=module_command(
                "holdfast.runtime.mpi.rank", str(directory), encode(trial).decode()
            ),
            ulfm=trial.ulfm,
            as_root=os.geteuid() == 0,
            launcher=library.launcher,
            terms=terms,
        )
        base = dict(environment) | library.variables(environment)
        ending, has_hung = _run(line, base, timeout_s)
        reports = _read_reports(directory)
    outcome = judge(trial, reports, ending)
    return replace(outcome, seconds=time.monotonic() - began, has_hung=has_hung)


def _run(line: LaunchLine, environment: Mapping[str, str], timeout_s: float) -> tuple[str, bool]:
    """Run a launch to its end or the timeout; return its end in words, and whether it hung."""
    launch = MpiLaunch(line, line.environment(environment))
    try:
        ends = [launch.end_fd]
        if not Bound(timeout_s).wait(lambda left_s: select.select(ends, [], [], left_s)[0]):
            return f"{line.ranks} ranks did not end within {timeout_s:g} s", True
        words = _first_words(launch.words())
        return f"mpiexec ended with code {launch.exit_code}{words}", False
    finally:
        launch.kill()
        launch.end()


def _first_words(output: str) -> str:
    """Return the first line of the output that is not empty, as a part of a sentence."""
    for line in output.splitlines():
        words = line.strip(" -*=#\t")
        if words:
            return f" ({words[:200]})"
    return ""


def _read_reports(directory: Path) -> dict[int, RankReport]:
    """Return the reports by rank."""
    return {
        int(path.stem.removeprefix("rank-")): decode(RankReport, path.read_bytes())
        for path in sorted(directory.glob("rank-*.json"))
    }
