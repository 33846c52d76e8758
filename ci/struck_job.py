"""One run of ``ci/cluster``: what its seed means, how it is struck, what must hold at its end."""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from cluster import Cluster
from host_jobs import HostJob, Loss
from secure_shell import start_ssh
from struck_journal import (
    Commit,
    Outage,
    Strike,
    fenced_commits,
    losses_without_cause,
    outage_of,
    updates_in,
    updates_without_word,
)
from workload import UNEVEN, Undisturbed, Workload, request_of

from holdfast.checkpoint.names import MANIFEST_NAME, STORE_NAME
from holdfast.testing import JobRun

HEAD_KILLED, HEAD_LOST, BLINK = "head-killed", "head-lost", "blink"
"""The head's process alone; its host with the client; and a link that is cut for a moment."""
KINDS = (*(loss.value for loss in Loss), HEAD_KILLED, HEAD_LOST)
HEARTBEAT_S = 5
_HOSTS = ("a", "b", "c", "d")
_SLOTS = 2
_TIMEOUT_S = 300.0
_HOLDFAST = str(Path(sys.executable).parent / "holdfast")
_OPTIONS = ("--heartbeat-timeout", str(HEARTBEAT_S), "--regrow", "auto")
_SHORT = replace(UNEVEN, microbatches=8, epochs=50, save_every=7, pause_ms=20)
_LONG = replace(_SHORT, samples=92, global_batch=12, epochs=40, features=100_000)
"""Vectors of 4 MB, so that a loss often meets a transfer."""
_COMES_BACK = {
    loss.value for loss in (Loss.KILL, Loss.POWER, Loss.CUT, Loss.DEAF, Loss.MUTE, Loss.FREEZE)
}
_LOSSES, _OTHERS = 3, 2
"""How many hosts a run loses, and how often it is struck in another way."""
_LOOK_S = 0.1


def _takes_host(kind: str) -> bool:
    return kind not in (HEAD_KILLED, HEAD_LOST) and Loss(kind).takes_host


@dataclass(frozen=True, slots=True)
class Blow:
    """A loss, so many steps after the one before it has passed."""

    kind: str
    host: str
    steps: int
    delay_s: float
    back_after_s: float | None = None
    """So long after the others go on; of a link that is cut and healed, after the cut."""
    is_with_next: bool = False
    is_timed: bool = False
    """Whether it is undone by the clock, whatever the job has made of it by then."""

    @property
    def may_pass(self) -> bool:
        """Whether it may cost no worker."""
        return self.is_timed or self.kind == Loss.WATCHDOG_KILLED.value

    def __str__(self) -> str:
        return f"{self.kind} {self.host}{' and' if self.is_with_next else ''}"


@dataclass(frozen=True, slots=True)
class Case:
    """One run of the campaign; everything about it follows from its seed and the kinds."""

    seed: int
    workload: Workload
    hosts: str
    blows: tuple[Blow, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts, the head's first."""
        return tuple(slots.partition(":")[0] for slots in self.hosts.split(","))

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.hosts}, {self.workload.features} features"


def case_of(seed: int, kinds: Sequence[str]) -> Case:
    """Return a run that loses up to three hosts, and is struck in two other ways."""
    choose = random.Random(seed)
    workload, hosts, others = _terms(choose)
    takers = [kind for kind in kinds if _takes_host(kind)]
    rest = [kind for kind in kinds if not _takes_host(kind)]
    dealt = [*_dealt(takers, seed, _LOSSES), *_dealt(rest, seed, _OTHERS)]
    choose.shuffle(dealt)
    placed = list(_placed(choose, dealt, others))
    pairs = [
        n for n, two in enumerate(pairwise(placed)) if {kind for kind, _ in two} <= set(takers)
    ]
    paired = choose.choice(pairs) if pairs and choose.random() < 1 / 4 else None
    blows = []
    for number, (kind, host) in enumerate(placed):
        comes_back = kind in _COMES_BACK and choose.random() < 2 / 3
        back = choose.uniform(0.1, 3.0) if comes_back else None
        delay = choose.uniform(0.0, 0.1)
        blows.append(Blow(kind, host, choose.randint(1, 8), delay, back, number == paired))
    return Case(seed, workload, hosts, tuple(blows))


def links_case_of(seed: int) -> Case:
    """Return a run whose links are cut and healed, with long vectors."""
    choose = random.Random(seed)
    _, hosts, others = _terms(choose)
    blows = []
    for host in choose.sample(others, _LOSSES):
        spans = [choose.uniform(0.05, 1.0), choose.uniform(0.05, 1.0), choose.uniform(2.0, 9.0)]
        for span in spans:
            kind = BLINK if span < 1.0 else Loss.CUT.value
            delay = choose.uniform(0.0, 0.1)
            blows.append(Blow(kind, host, choose.randint(1, 8), delay, span, is_timed=True))
    return Case(seed, _LONG, hosts, tuple(blows))


def _terms(choose: random.Random) -> tuple[Workload, str, list[str]]:
    """Choose the workload and the hosts; without a worker on the head, another host saves."""
    workload = choose.choice((_SHORT, _LONG))
    has_own = choose.random() < 2 / 3
    others = [*_HOSTS[1:], *(() if has_own else ("e",))]
    slots = {_HOSTS[0]: _SLOTS if has_own else 0} | dict.fromkeys(others, _SLOTS)
    return workload, ",".join(f"{host}:{count}" for host, count in slots.items()), others


def _dealt(kinds: Sequence[str], seed: int, count: int) -> Iterator[str]:
    """Deal the kinds to the seeds, so that runs in a row have each one equally often."""
    for place in range(seed * count, (seed + 1) * count if kinds else 0):
        deck = list(kinds)
        random.Random(place // len(deck)).shuffle(deck)
        yield deck[place % len(deck)]


def _placed(
    choose: random.Random, kinds: Sequence[str], others: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield each loss with a host that has not been lost; none may be left for a worker."""
    waiting, whole = choose.sample(others, _LOSSES), set(others)
    for kind in kinds:
        host = _HOSTS[0]
        if kind not in (HEAD_KILLED, HEAD_LOST):
            if _takes_host(kind):
                host = waiting.pop()
            elif whole:
                host = choose.choice(sorted(whole))
            else:
                continue
            if kind != Loss.WATCHDOG_KILLED.value:
                whole.discard(host)  # one worker of a host that is lost later is enough
        yield kind, host


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a case."""

    case: Case
    strikes: tuple[Strike, ...]
    complaints: tuple[str, ...]
    job: JobRun | None
    seconds: float
    without_word: int
    """How many updates a world has applied that the head had not named."""

    @property
    def outages(self) -> list[tuple[Strike, Outage | None]]:
        """The outage of each strike; what follows the next strike on its host is not its doing."""
        journal = () if self.job is None else self.job.journal
        found = []
        for number, strike in enumerate(self.strikes):
            later = [other.at for other in self.strikes[number + 1 :] if other.host == strike.host]
            until = min(later, default=float("inf"))
            own = [record for record in journal if record["now"] < until]
            found.append((strike, outage_of(own, strike)))
        return found

    def __str__(self) -> str:
        job = self.job
        events = Counter(record["event"] for record in (() if job is None else job.journal))
        head = f"{'BAD' if self.complaints else 'ok '} {self.seconds:5.1f} s"
        counts = f"{events['failure']:2} deaths, {events['launch']} launches"
        struck = [
            f"{strike.kind} {strike.host} {'-' if out is None else f'{out.seconds:.3f} s'}"
            for strike, out in self.outages
        ]
        lines = [f"{head} {counts}  {self.case}; {'; '.join(struck)}", *self.complaints]
        if self.complaints and job is not None:
            lines.append(job.stderr)
        return "\n    ".join(lines)


def run_case(case: Case, folder: Path, undisturbed: Undisturbed, *, by_ssh: bool) -> Outcome:
    """Run a case on hosts of its own, which end with all that is on them."""
    folder.mkdir()
    began = time.monotonic()
    complaints: list[str] = []
    job, strikes, late = None, list[Strike](), Counter[str]()
    expected = undisturbed(case.workload)
    try:
        with Cluster(folder, case.names) as cluster, _Commits(folder / "run") as commits:
            rsh = start_ssh(cluster) if by_ssh else None
            struck = _StruckRun(case, cluster, folder, rsh, strikes)
            job = struck.run()
            complaints += struck.complaints
            complaints += [line for host in case.names for line in _sockets(cluster, host)]
        complaints += _complaints(job, folder / "run", expected)
        complaints += losses_without_cause(job.journal, strikes)
        leased = {strike.host for strike in strikes if strike.kind == Loss.SHELL_LATE.value}
        complaints += fenced_commits(job.journal, commits.found, leased)
        late = updates_without_word(job.journal, updates_in((folder / "trace").read_text()))
        complaints += [f"process {one} applied {n} updates without word" for one, n in late.items()]
    except (TimeoutError, subprocess.SubprocessError) as error:
        complaints.append(str(error))
    seconds = time.monotonic() - began
    return Outcome(case, tuple(strikes), tuple(complaints), job, seconds, late.total())


@dataclass
class _StruckRun:
    """The jobs of a case: the first one, and one more for each loss of the head's host."""

    case: Case
    cluster: Cluster
    folder: Path
    rsh: str | None
    strikes: list[Strike]
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._counts, self._counted_to = Counter[str](), 0
        self._down: dict[str, Blow] = {}
        self._due: list[tuple[float, Blow]] = []

    def run(self) -> JobRun:
        """Strike as the case says, and wait for all ends."""
        waiting = list(self.case.blows)
        while True:
            with self._start() as job:
                if self._strike_all(job, waiting):
                    self._end_lost_job(job)
                    continue
                job.wait_until(lambda: self._undo_due(job) or not self._due, "hosts that are back")
                job.wait_end()
                for host, blow in list(self._down.items()):
                    if blow.kind == Loss.FREEZE.value:  # what is frozen cannot see its head's end
                        self._undo(job, host)
                done = job.wait()
            self.complaints += [f"left behind {what}" for what in done.leftovers]
            return done

    def _start(self) -> HostJob:
        case = self.case
        workers = sum(int(slots.partition(":")[2]) for slots in case.hosts.split(","))
        run = self.folder / "run"
        request = request_of(case.workload, run, workers=workers, options=_OPTIONS)
        request = replace(request, argv=[*request.argv, "--trace", str(self.folder / "trace")])
        return HostJob(self.cluster, request, case.hosts, rsh=self.rsh, timeout_s=_TIMEOUT_S)

    def _strike_all(self, job: HostJob, waiting: list[Blow]) -> bool:
        """Strike the job; return whether it has lost its head's host."""
        is_alone = True
        while waiting:
            blow = waiting.pop(0)
            if is_alone:
                self._wait_steps(job, blow.steps)
            if job.has_ended:  # it was faster than the strikes
                return False
            time.sleep(blow.delay_s)
            is_alone, was_alone = not blow.is_with_next, is_alone
            strike = self._strike(job, blow, is_alone=is_alone and was_alone)
            if strike is not None and blow.kind == HEAD_LOST:
                return True
            if strike is not None and is_alone:
                self._wait_passed(job, blow, strike)
        return False

    def _strike(self, job: HostJob, blow: Blow, *, is_alone: bool) -> Strike | None:
        """Strike once; None if the host has nothing that could be struck."""
        strike = Strike(
            blow.kind, blow.host, time.monotonic(), is_alone=is_alone, may_pass=blow.may_pass
        )
        self.strikes.append(strike)
        try:
            if blow.kind == HEAD_KILLED:
                job.kill_head()
            elif blow.kind == HEAD_LOST:
                job.strike(Loss.KILL, blow.host)
            elif not job.workers(blow.host):  # a loss before has taken them along
                self.strikes.pop()
                return None
            else:
                job.strike(_loss_of(blow.kind), blow.host)
        except (ValueError, IndexError, ProcessLookupError):  # it is starting, or ending
            self.strikes.pop()
            return None
        if blow.kind in {*_COMES_BACK, BLINK}:
            self._down[blow.host] = blow
        return strike

    def _wait_steps(self, job: HostJob, steps: int) -> None:
        """Wait until one worker has applied so many more updates."""
        before = self._applied()

        def has_trained() -> bool:
            self._undo_due(job)
            applied = self._applied().items()
            return job.has_ended or any(count >= before[name] + steps for name, count in applied)

        job.wait_until(has_trained, f"{steps} steps")

    def _applied(self) -> Counter[str]:
        """Return how many updates each worker has applied; only new lines are read."""
        with contextlib.suppress(FileNotFoundError), (self.folder / "trace").open("rb") as trace:
            trace.seek(self._counted_to)
            text = trace.read()
            text = text[: text.rfind(b"\n") + 1]
            self._counted_to += len(text)
            self._counts.update(update.process for update in updates_in(text.decode()))
        return self._counts.copy()

    def _wait_passed(self, job: HostJob, blow: Blow, strike: Strike) -> None:
        """Wait until the others go on, and plan when the host comes back."""
        if blow.is_timed and blow.back_after_s is not None:
            time.sleep(max(0.0, strike.at + blow.back_after_s - time.monotonic()))
            self._undo(job, blow.host)
            undone = replace(strike, undone_at=time.monotonic())
            self.strikes[self.strikes.index(strike)] = strike = undone

        def has_passed() -> bool:
            self._undo_due(job)
            time.sleep(_LOOK_S)
            return job.has_ended or outage_of(job.journal, strike) is not None

        job.wait_until(has_passed, f"step after {blow}")
        now = time.monotonic()
        for host, down in self._down.items():
            planned = {planned.host for _, planned in self._due}
            if down.back_after_s is not None and host not in planned:
                self._due.append((now + down.back_after_s, down))

    def _undo_due(self, job: HostJob) -> bool:
        """Bring back the hosts whose time has come."""
        for due, blow in list(self._due):
            if time.monotonic() >= due:
                self._undo(job, blow.host)
        return False

    def _undo(self, job: HostJob, host: str) -> None:
        blow = self._down.pop(host, None)
        self._due = [(due, planned) for due, planned in self._due if planned.host != host]
        if blow is not None:
            job.undo(_loss_of(blow.kind), host)

    def _end_lost_job(self, job: HostJob) -> None:
        """Wait until nothing is left of a job without its head; mend all hosts."""
        for host in [*self._down]:
            self._undo(job, host)
        for host in self.case.names[1:]:
            left = self.cluster.wait_empty(host)
            self.complaints += [f"left behind on {host} without the head: {what}" for what in left]
        job.undo(Loss.KILL, self.case.names[0])


def _loss_of(kind: str) -> Loss:
    return Loss.CUT if kind == BLINK else Loss(kind)


class _Commits:
    """Sees each checkpoint of a run come into sight, also those that are pruned again."""

    def __init__(self, run_dir: Path) -> None:
        self._store = run_dir / STORE_NAME
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.found: list[Commit] = []

    def __enter__(self) -> _Commits:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ends.set()
        self._thread.join()

    def _watch(self) -> None:
        known = set[tuple[str, int]]()
        while not self._ends.wait(0.02):
            with contextlib.suppress(OSError, ValueError):
                for step in self._store.glob("step-*"):
                    about = step.stat()
                    if (step.name, about.st_ino) in known:
                        continue
                    manifest = (step / MANIFEST_NAME).read_text()
                    content, _ = json.JSONDecoder().raw_decode(manifest)
                    number = int(step.name.partition("-")[2])
                    self.found.append(Commit(number, content["generation"], about.st_ctime))
                    known.add((step.name, about.st_ino))


def _sockets(cluster: Cluster, host: str) -> Iterator[str]:
    """Yield a sentence for each socket that takes connections on a host after the job."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # a lost host has none
        for listener in cluster.listening(host):
            yield f"left behind on {host}: {listener}"
        named = cluster.run(host, ["ss", "-H", "-l", "-x", "-n"]).stdout
        yield from (f"left behind on {host}: {line}" for line in named.splitlines())


def _complaints(job: JobRun, run_dir: Path, expected: str) -> Iterator[str]:
    """Yield a sentence for each thing that must hold at the end and does not."""
    if "Traceback" in job.stderr:
        yield "a traceback of ours"
    if job.exit_code != 0:
        yield f"exit code {job.exit_code}"
        return
    if job.sha256 != expected:
        yield f"wrong bytes: {job.sha256} instead of {expected}"
    if not all(epoch.exact for epoch in job.report.epochs):
        yield f"the ledger is not exact: {job.report.epochs}"
    checked = subprocess.run(
        [_HOLDFAST, "verify", str(run_dir)], capture_output=True, text=True, check=False
    )
    if checked.returncode:
        yield f"a saved step is not valid: {checked.stdout}{checked.stderr}"
