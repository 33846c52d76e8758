"""Run many jobs over four hosts and lose hosts of them; see ``ci/cluster``.

Run number i has the seed S + i, which decides everything about it: length of the vectors, the
losses with their hosts, and when they strike and heal.  When is counted in updates of all workers,
so a slow machine does not move a loss to another part of the job.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster import Cluster, why_not
from host_jobs import HostJob, HostJobRun, Loss
from secure_shell import start_ssh
from workload import Undisturbed, Workload, remembering, request_of

from holdfast.recovery.placement import place_workers
from holdfast.runtime.options.host_list import read_hosts

HOSTS = ("a", "b", "c", "d")
SLOTS = 2
TIMEOUT_S = 300.0
_HOLDFAST = str(Path(sys.executable).parent / "holdfast")
_OPTIONS = ("--heartbeat-timeout", "5")
_WORKLOAD = Workload(
    microbatches=8, samples=173, global_batch=25, epochs=6, save_every=7, pause_ms=5
)
_LONG = replace(_WORKLOAD, features=100_000)
"""Vectors of 4 MB, so that a loss often meets a transfer."""


@dataclass(frozen=True, slots=True)
class Blow:
    """A loss on a host, after so many updates of all workers together."""

    loss: Loss
    host: str
    updates: int
    delay_s: float
    heals_after_s: float | None

    def __str__(self) -> str:
        heals = "" if self.heals_after_s is None else f", back after {self.heals_after_s:.1f} s"
        return f"{self.loss.value} {self.host} after {self.updates} updates{heals}"


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the campaign."""

    seed: int
    workload: Workload
    slots: Mapping[str, int]
    blows: tuple[Blow, ...]

    @staticmethod
    def of(seed: int, losses: Sequence[Loss]) -> Case:
        """Return the case that follows from ``seed`` and the kinds of losses."""
        choose = random.Random(seed)
        workload = choose.choice((_WORKLOAD, _LONG))
        # Without a worker on the head, another host has the first worker, and so it saves.
        slots = dict.fromkeys(HOSTS, SLOTS) | {HOSTS[0]: choose.choice((SLOTS, SLOTS, 0))}
        workers = sum(slots.values())
        others = list(HOSTS[1:])
        choose.shuffle(others)
        first = choose.randint(1, workload.steps * workers * 3 // 4)
        blows = []
        for host in others[: choose.choice((1, 1, 2))]:
            loss = choose.choice(losses)
            may_heal = loss in {Loss.CUT, Loss.FREEZE}
            heals = choose.uniform(0.2, 12.0) if may_heal and choose.random() < 0.7 else None
            blows.append(Blow(loss, host, first, choose.uniform(0.0, 0.2), heals))
            first += choose.choice((0, 0, choose.randint(0, 2 * workers)))
        return Case(seed, workload, slots, tuple(blows))

    def __str__(self) -> str:
        blows = "; ".join(map(str, self.blows))
        return f"seed {self.seed}: {self.hosts}, {self.workload.features} features; {blows}"

    @property
    def hosts(self) -> str:
        """The hosts as ``--hosts`` takes them."""
        return ",".join(f"{host}:{slots}" for host, slots in self.slots.items())

    @property
    def placed(self) -> tuple[str, ...]:
        """The host of each worker of the first launch."""
        return place_workers(sum(self.slots.values()), read_hosts(self.hosts))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    case: Case
    complaints: tuple[str, ...]
    job: HostJobRun | None
    seconds: float

    def __str__(self) -> str:
        job = self.job
        events = Counter(record["event"] for record in (() if job is None else job.journal))
        head = f"{'BAD' if self.complaints else 'ok '} {self.seconds:5.1f} s"
        counts = f"{events['failure']} deaths, {events['launch']} launches"
        lines = [f"{head} {counts}  {self.case}", *self.complaints]
        if self.complaints and job is not None:
            lines.append(job.stderr)
        return "\n    ".join(lines)


def main() -> int:
    """Run the campaign; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--ssh", action="store_true", help="reach the hosts by OpenSSH")
    kinds = [loss.value for loss in Loss]
    parser.add_argument("losses", nargs="*", metavar="LOSS", help=f"of {', '.join(kinds)}")
    options = parser.parse_args()
    if unknown := set(options.losses) - set(kinds):
        parser.error(f"{', '.join(unknown)}: there are {', '.join(kinds)}")
    if reason := why_not():
        print(f"cluster: {reason}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so clean up

    losses = [Loss(kind) for kind in options.losses or kinds]
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="holdfast-cluster-") as name:
        undisturbed = remembering(lambda folder: Path(tempfile.mkdtemp(prefix=folder, dir=name)))
        for seed in range(options.seed, options.seed + options.runs):
            case = Case.of(seed, losses)
            outcome = run_case(case, Path(name) / str(seed), undisturbed, by_ssh=options.ssh)
            outcomes.append(outcome)
            print(outcome, flush=True)
    bad = [outcome for outcome in outcomes if outcome.complaints]
    launches = Counter(
        len(outcome.job.events("launch")) for outcome in outcomes if outcome.job is not None
    )
    print(
        f"{len(outcomes)} runs, {len(bad)} bad; runs by launches: {dict(sorted(launches.items()))}"
    )
    for outcome in bad:
        print(f"bad: replay with ci/cluster --seed {outcome.case.seed} --runs 1", *options.losses)
    return 1 if bad else 0


def run_case(case: Case, folder: Path, undisturbed: Undisturbed, *, by_ssh: bool) -> Outcome:
    """Run a case on hosts of its own."""
    folder.mkdir()
    began = time.monotonic()
    complaints: list[str] = []
    job = None
    try:
        with Cluster(folder, HOSTS) as cluster:
            rsh = start_ssh(cluster) if by_ssh else None
            job = _strike(case, cluster, folder, rsh)
        complaints += _complaints(case, job, folder / "run", undisturbed)
    except TimeoutError as error:
        complaints.append(str(error))
    return Outcome(case, tuple(complaints), job, time.monotonic() - began)


def _strike(case: Case, cluster: Cluster, folder: Path, rsh: str | None) -> HostJobRun:
    """Start the job, lose what the case says, and wait for all ends."""
    trace = folder / "trace"
    request = request_of(case.workload, folder / "run", workers=len(case.placed), options=_OPTIONS)
    request = replace(request, argv=[*request.argv, "--trace", str(trace)])
    heals: list[tuple[float, Blow]] = []
    with HostJob(cluster, request, case.hosts, rsh=rsh, timeout_s=TIMEOUT_S) as job:
        for blow in case.blows:
            job.wait_until(_counts(trace, blow.updates), f"{blow.updates} updates")
            time.sleep(blow.delay_s)
            job.strike(blow.loss, blow.host)
            if blow.heals_after_s is not None:
                heals.append((time.monotonic() + blow.heals_after_s, blow))
        for due, blow in sorted(heals, key=lambda heal: heal[0]):
            time.sleep(max(0.0, due - time.monotonic()))
            job.undo(blow.loss, blow.host)
        job.wait_end()
        for blow in case.blows:  # what stays frozen would never see that it lost its head
            if blow.loss is Loss.FREEZE and blow.heals_after_s is None:
                job.undo(blow.loss, blow.host)
        return job.wait()


def _counts(trace: Path, updates: int) -> Callable[[], bool]:
    return lambda: trace.exists() and trace.read_bytes().count(b"\n") >= updates


def _complaints(
    case: Case, job: HostJobRun, run_dir: Path, undisturbed: Undisturbed
) -> Iterator[str]:
    """Yield a sentence for each thing that must hold and does not."""
    for host, left in job.leftovers.items():
        yield from (f"left behind on {host}: {what}" for what in left)
    if "Traceback" in job.stderr:
        yield "a traceback of ours"
    if job.exit_code != 0:
        yield f"exit code {job.exit_code}"
        return
    expected = undisturbed(case.workload)
    if job.sha256 != expected:
        yield f"wrong bytes: {job.sha256} instead of {expected}"
    if not all(epoch.exact for epoch in job.report.epochs):
        yield f"the ledger is not exact: {job.report.epochs}"
    checked = subprocess.run(
        [_HOLDFAST, "verify", str(run_dir)], capture_output=True, text=True, check=False
    )
    if checked.returncode:
        yield f"a saved step is not valid: {checked.stdout}{checked.stderr}"
    struck = {blow.host for blow in case.blows}
    healthy = {n for n, host in enumerate(case.placed) if host not in struck}
    if len(job.events("launch")) == 1:
        lost = {failure.worker for failure in job.report.failures}
        yield from (f"worker {n} of a healthy host died" for n in sorted(lost & healthy))


if __name__ == "__main__":
    sys.exit(main())
