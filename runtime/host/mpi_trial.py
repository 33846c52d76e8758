"""How far an MPI can be trusted: a short trial by a real death, and its kept verdict.

Version numbers do not tell: ULFM may be compiled out, switched off by a site, or belong to
another library than the one that mpi4py loads.  So before the first run with an MPI one of two
ranks is killed, and the other must go on; that takes half a second.  Without shrinking two ranks
must start.  An MPI that hangs has failed.

All ranks of a trial take steps together (`mpi_rank`): they exchange vectors, vote, and repair their
world after a death, as the workers of a job do.  The survivors must come to the end with the right
sums.  A wrong sum, or survivors that disagree about their world, weigh more than any number of lost
ranks.  Lost ranks cost a relaunch.  Wrong results would cost the bytes of the run.

A good verdict lies in ``${XDG_CACHE_HOME:-~/.cache}/holdfast``, for this host and this build of the
library.  The name of its file stands for everything that decides which library is loaded, and how.
So each network between hosts, and each set of the user's own settings, has a verdict of its own.
A bad answer is not kept: the machine may have been busy, or is repaired later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import select
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from importlib import metadata
from pathlib import Path

from holdfast.runtime.errors import UsageError
from holdfast.runtime.host.launchers import (
    INSTALL_HINT,
    ON_ONE_HOST,
    LaunchLine,
    LaunchTerms,
    MpiLibrary,
)
from holdfast.runtime.host.mpi_host import MpiLaunch
from holdfast.runtime.run.files import write_whole
from holdfast.runtime.system.codec import decode, encode
from holdfast.runtime.system.own_process import module_command
from holdfast.runtime.system.witnessed_time import Bound

_TRIAL_TIMEOUT_S = 45.0
"""A hundred times what it takes: a busy machine must not be told that its MPI is unfit."""

_CHOICES = ("MPI4PY_", "LD_LIBRARY_PATH", "LD_PRELOAD", "OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
"""Beginnings of variables that choose a library, or its behaviour."""


class Where(Enum):
    """Where a rank dies."""

    EXCHANGE = "exchange"
    """Half of its messages are sent."""
    VOTE = "vote"
    """Its peers wait for its vote."""
    REVOKED = "revoked"
    """It has revoked the world, and its peers are on their way into Shrink."""
    REPAIR = "repair"
    """At a moment of the repair that a clock chooses, inside Shrink as a rule."""
    CLOCK = "clock"
    """At a moment of the step that a clock chooses."""


@dataclass(frozen=True, slots=True)
class Death:
    """The death of one rank, by SIGKILL as guards die; ``delay_ms`` is that of a clock."""

    rank: int
    where: Where
    delay_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One launch of ``ranks`` ranks, and the deaths in it."""

    name: str
    ranks: int
    deaths: tuple[Death, ...] = ()
    elements: int = 10_000
    """Length of the vectors that are exchanged, in 8 bytes each."""
    ulfm: bool = True
    revokes: int = 0
    """So many worlds are revoked by one member while others are still inside Shrink."""

    @property
    def survivors(self) -> frozenset[int]:
        """The ranks that must come to the end."""
        return frozenset(range(self.ranks)) - {death.rank for death in self.deaths}


PLAIN_START = Trial("start without fault tolerance", 2, ulfm=False)
FIRST_DEATH = Trial("one of two dies", 2, (Death(1, Where.EXCHANGE),))


class Trust(IntEnum):
    """What a job may rely on; each includes those below it."""

    NOTHING = 0
    """Ranks do not even start."""
    RELAUNCH = 1
    """Ranks work together; a death ends the launch."""
    ONE = 2
    """Survivors outlive a death."""


@dataclass(slots=True)
class RankReport:
    """What one rank writes at its end."""

    world: tuple[int, ...] = ()
    """The ranks of the launch that it went on with."""
    steps: int = 0
    wrong: str = ""
    """A wrong result that it saw, as a sentence."""
    failure: str = ""
    """Why it could not go on, as a sentence."""


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """How one trial ended; both texts are empty if it passed."""

    trial: Trial
    failure: str = ""
    wrong: str = ""
    seconds: float = 0.0
    has_hung: bool = False

    @property
    def has_passed(self) -> bool:
        """Whether all survivors came to the end with right results."""
        return not self.fault

    @property
    def fault(self) -> str:
        """The gravest fault that was seen, "" for none."""
        return self.wrong or self.failure


def judge(trial: Trial, reports: Mapping[int, RankReport], ending: str) -> TrialOutcome:
    """Return the outcome that the reports of ranks tell; ``ending`` says how mpiexec ended."""
    wrong = next((report.wrong for report in reports.values() if report.wrong), "")
    failure = next((report.failure for report in reports.values() if report.failure), "")
    survivors = {rank: reports[rank] for rank in sorted(trial.survivors) if rank in reports}
    worlds = {report.world for report in survivors.values() if not report.failure}
    lost = sorted(trial.survivors - set(survivors))
    if len(worlds) > 1:
        wrong = wrong or f"survivors went on in different worlds: {sorted(worlds)}"
    if lost and not failure:
        ranks = ", ".join(map(str, lost))
        failure = f"rank {ranks} of {trial.ranks} was lost, although nobody killed it; {ending}"
        if set(lost) == trial.survivors:
            failure = ending
    return TrialOutcome(trial, failure, wrong)


def run_trial(
    library: MpiLibrary,
    environment: Mapping[str, str],
    trial: Trial,
    terms: LaunchTerms = ON_ONE_HOST,
    *,
    timeout_s: float = _TRIAL_TIMEOUT_S,
) -> TrialOutcome:
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
                "holdfast.runtime.host.mpi_rank", str(directory), encode(trial).decode()
            ),
            ulfm=trial.ulfm,
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


_SHORT_TRIALS = {Trust.RELAUNCH: PLAIN_START, Trust.ONE: FIRST_DEATH}


def require(
    library: MpiLibrary,
    environment: Mapping[str, str],
    needed: Trust,
    terms: LaunchTerms = ON_ONE_HOST,
) -> None:
    """Refuse an MPI that a job cannot rely on: by what is kept, or by a short trial.

    Raises:
        UsageError: the message gives the reason and the remedies.
    """
    verdict = _Verdict(library, environment, terms)
    if verdict.trust >= needed:
        return
    starts = needed is Trust.ONE  # a fault there is one of survivors
    if starts and not library.launcher.can_shrink:
        fault = f"{library.name} ends all workers with the first that dies"
    else:
        fault = run_trial(library, environment, _SHORT_TRIALS[needed], terms).fault
    if not fault:
        verdict.keep(needed)
        return
    cannot = "continue after a worker's death (ULFM)" if starts else "start workers"
    relaunched = "run with --no-shrink, which relaunches the job at every death"
    if terms.mca:
        cannot += f" with {terms}"
        remedy = f"leave --mca out, or {relaunched}" if starts else "correct --mca, or leave it out"
    else:
        remedy = f"{INSTALL_HINT}, or {relaunched if starts else 'name another with --mpiexec'}"
    raise UsageError(f"{library} cannot {cannot}: {fault}; {remedy}")


class _Verdict:
    """What was found out of a library on this host, in a file; without a cache it is not kept."""

    def __init__(
        self, library: MpiLibrary, environment: Mapping[str, str], terms: LaunchTerms
    ) -> None:
        chosen = dict(environment) | library.variables(environment)
        parts = (
            *(str(library), platform.node(), sys.executable, sys.version),
            *(metadata.version("mpi4py"), list(_builds(library))),
            *(library.launcher.options, library.launcher.ulfm_options),
            terms.parameters(library.launcher),
            sorted((name, value) for name, value in chosen.items() if name.startswith(_CHOICES)),
        )
        key = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
        home = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = Path(home) if os.path.isabs(home) else Path(os.devnull)  # a user without a home
        self._library = str(library)
        self._path = folder / "holdfast" / f"mpi-{key}.json"

    @property
    def trust(self) -> Trust:
        """What was kept, nothing if that cannot be read."""
        try:
            return Trust[json.loads(self._path.read_bytes())["trust"]]
        except (OSError, ValueError, KeyError, TypeError):
            return Trust.NOTHING

    def keep(self, trust: Trust) -> None:
        """Keep what was found out; without a cache the next run costs a trial, and no more."""
        text = json.dumps({"library": self._library, "trust": trust.name})
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, f"{text}\n".encode())


def _builds(library: MpiLibrary) -> Iterator[tuple[int, int]]:
    """Yield size and time of the files that another build of the same version replaces."""
    for path in filter(None, (library.mpiexec, library.file)):
        with contextlib.suppress(OSError):
            found = path.stat()
            yield found.st_size, found.st_mtime_ns
