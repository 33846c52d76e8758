"""In the head: one launch, on all hosts that its workers live on, and what is decided over it.

The invariant: *a worker lives exactly as long as its guard*.  If a guard is gone, its
worker gets a SIGKILL.  If a worker ends without leaving, its guard gets one, and MPI tells
the survivors.  A guard that loses its agent kills itself.  So every death becomes one that
ULFM handles.

The guards are all where mpiexec is, and so is this part.  It knows the hosts by their links alone
(`host_messages`).  It decides over the workers of all of them: who comes on no more, which of them
are the world that goes on (`recovery.world`), when the scripts have come to their end, who
saves in a halt, and that nobody lives any more, so that memory is settled.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from holdfast.recovery.event import (
    Event,
    HostLost,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
    WorldNamed,
)
from holdfast.recovery.placement import left_out
from holdfast.recovery.saves import SaveNews
from holdfast.recovery.world import REFUSED, OneWorld, WorkerId
from holdfast.runtime.host import host_messages as messages
from holdfast.runtime.host.fencing import Fencing
from holdfast.runtime.host.halting import Halting, look_at_ends
from holdfast.runtime.host.host_messages import Down, HostLink, News, Queue, Up
from holdfast.runtime.host.hosted_worker import (
    GuardHello,
    GuardLink,
    HostedWorker,
    describe,
    make_workers,
    placing,
    short_report,
)
from holdfast.runtime.host.launch_saves import FailedSaves, LaunchSaves
from holdfast.runtime.host.mpi_host import HostState
from holdfast.runtime.host.pairs import Broken, PairTrials
from holdfast.runtime.host.pool_process import Forked, LetBegin
from holdfast.runtime.host.preparation import Preparation
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.events import (
    PoolLost,
    PoolRestarted,
    PoolWarmed,
    Pressure,
    Suspected,
    WorkerFenced,
)
from holdfast.runtime.run.journal import Records
from holdfast.runtime.run.progress import LaunchReport
from holdfast.runtime.run.worker_logs import LogText
from holdfast.runtime.saving.save_messages import PlanSaves
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.witnessed_time import Bound, witnessed_s
from holdfast.runtime.system.worker_status import OwnReport, RequestFlag, SurvivorsMet

if TYPE_CHECKING:
    from holdfast.runtime.hosts.remote_host import RemoteHost

OnMessage: TypeAlias = Callable[[HostLink, Up], None]
OnLost: TypeAlias = Callable[[HostLink, str], None]

_OTHERS_END_WITHIN_S = 5.0
"""The agents of all other hosts end at once."""
_CUT_OFF = "it is cut off from the workers that go on"


class HostedLaunch:
    """The launch: all its workers, their guards, and what is decided over them."""

    def __init__(
        self,
        reactor: Reactor,
        tell: Callable[[News], None],
        hosts: Sequence[HostLink],
        *,
        heartbeat_timeout_s: float,
    ) -> None:
        """Take the way to tell an event, and the hosts; mpiexec and the guards are on the first."""
        self._reactor = reactor
        self._tell = tell
        self._hosts = list(hosts)
        self._links: list[RemoteHost] = []
        """All other hosts, also those that are lost and whose shells have not ended."""
        self.calls = Queue()
        """What hosts tell is heard one at a time, in order."""
        self._cold = set(hosts)
        """Those whose pools have not imported everything."""
        self._seen: dict[HostLink, messages.Seen] = {}
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._fencing = Fencing(tell, heartbeat_timeout_s, self._try_pairs)
        self.pairs = PairTrials()
        """Tries the network between the hosts."""
        self._is_trying = False
        self._halting = Halting(self._tell, {})
        self._launch: WorkerConfig | None = None
        self._placed: Mapping[WorkerId, HostLink] = {}
        self._worlds = OneWorld(0, ())
        self._world = 0
        """The generation of the newest world that was told of."""
        self._workers: dict[WorkerId, HostedWorker] = {}
        """Of all launches: no two have a worker in common."""
        self.prepared = Preparation(tell, reactor.forget)
        """The workers of a launch that may follow."""
        self._saves: dict[int, LaunchSaves] = {}
        """Those of the newest launch, and of older ones whose memory is not settled."""
        self._failed_saves = FailedSaves()
        self._has_guards = False
        self._has_reports = False
        """Whether the workers that live may have come to a common end since the last look."""
        self._has_lost = False
        self._has_lost_pool = False
        self._is_urgent = False
        self._is_abandoned = False

    @property
    def workers(self) -> tuple[HostedWorker, ...]:
        """The workers of all hosts, from the announcement of their launch to their end."""
        return tuple(self._workers.values())

    @property
    def is_idle(self) -> bool:
        """Whether there is no worker, and no save of dead workers is being committed."""
        return not self._workers and not self._is_settling

    @property
    def _is_settling(self) -> bool:
        return any(saves.is_settling for saves in self._saves.values())

    @property
    def state(self) -> HostState:
        """The workers of the newest launch, in short."""
        is_empty = not any(hosted.occupies_a_rank for hosted in self._workers.values())
        return HostState(
            is_empty=is_empty and not (self._is_settling or self._is_trying),
            had_guards=self._has_guards,
            ended_well=not self._has_lost,
        )

    @property
    def progress(self) -> LaunchReport:
        """How far training has come, in short."""
        return short_report(self.workers)

    def describe(self) -> LaunchReport:
        """Return how far training has come, with a line for each worker."""
        self._post_all(messages.Describe())
        standing_s = self._fencing.standing_s()
        told = [describe(hosted, standing_s.get(hosted.worker)) for hosted in self.workers]
        return dataclasses.replace(self.progress, workers=tuple(told))

    @property
    def is_helpless(self) -> bool:
        """Whether no worker lives, and none can be made."""
        return self._has_lost_pool and all(hosted.pid is None for hosted in self.workers)

    @property
    def is_inquiring(self) -> bool:
        """Whether workers are about to be killed, as soon as it is known what they do."""
        return self._fencing.is_inquiring or self._is_one_silent

    @property
    def _is_one_silent(self) -> bool:
        return any(seen.is_inquiring for seen in self._seen.values())

    def begin(self, launch: WorkerConfig) -> None:
        """Let the hosts make the workers of ``launch``, which wait for their guards.

        The remaining workers of an earlier launch are killed.

        Raises:
            OSError: a host is lost, or this one cannot make a worker.
        """
        placed = self._placing(launch)
        prepared = self.prepared.take(launch.generation)
        self.kill_all(f"generation {launch.generation} begins")
        self._launch = launch
        self._fencing.begin(launch.options.stall_timeout_s)
        self._halting = Halting(self._tell, launch.host_of)
        self._has_guards = self._has_lost = self._has_lost_pool = False
        self._is_urgent = self._is_abandoned = False
        self._post_all(messages.BeginLaunch(launch))
        self._placed = placed
        self._world = launch.generation
        self._worlds = OneWorld(launch.generation, launch.workers)
        self._saves = {key: saves for key, saves in self._saves.items() if saves.is_settling}
        self._saves[launch.generation] = LaunchSaves(
            launch.generation,
            self._tell,
            lambda: self._hosts,
            lambda: self.workers,
            self._failed_saves,
        )
        found = make_workers(launch, placed) if prepared is None else prepared
        self._workers |= {hosted.worker: hosted for hosted in found}
        if prepared is not None:
            self._watch()
            for hosted in found:
                self._tell(WorkerJoined(hosted.worker))

    def prepare(self, launch: WorkerConfig) -> None:
        """Let the hosts make the workers of a launch that may follow, beside those that train.

        Raises:
            OSError: a host is lost, or this one cannot make a worker.
        """
        placed = self._placing(launch)
        self._post_all(messages.PrepareLaunch(launch))
        self.prepared.begin(launch, make_workers(launch, placed))

    def _placing(self, launch: WorkerConfig) -> Mapping[WorkerId, HostLink]:
        return placing(launch, {host.name or self.pairs.own_name: host for host in self._hosts})

    @property
    def _others(self) -> list[RemoteHost]:
        """The other hosts that take workers."""
        return [host for host in self._links if host in self._hosts]

    @property
    def shells(self) -> tuple[int, ...]:
        """The processes that are the connections to other hosts."""
        return tuple(host.pid for host in self._links)

    def start_host(
        self, start: Callable[[OnMessage, OnLost], RemoteHost], *, is_tried: bool = False
    ) -> None:
        """Start another host, for the next launch; ``start`` takes what hears of it.

        One that ``is_tried`` again concerns no launch before it is ``admit``ted.

        Raises:
            OSError: it cannot be started.
        """
        host = start(
            lambda host, message: self.calls.put(lambda: self.hear(host, message)),
            lambda host, why: self.calls.put(lambda: self.lose_host(host, why)),
        )
        self._links.append(host)
        if not is_tried:
            self._add_host(host)

    def _add_host(self, host: RemoteHost) -> None:
        self._hosts.append(host)
        self._cold.add(host)

    def admit(self, name: str, then: Callable[[str], None]) -> None:
        """Let a host that was tried again, and has answered, take workers of the next launch.

        The ways to it are tried first; ``then`` hears what is wrong with them, or "".
        """
        newcomer = next(host for host in reversed(self._links) if host.name == name)

        def conclude(broken: Broken) -> None:
            if newcomer.is_lost:
                return
            why = self.pairs.why(name, broken)
            if not why:
                self._add_host(newcomer)
            then(why)
            if why:
                newcomer.give_up(why)

        self.pairs.begin([*self._hosts, newcomer], conclude)

    def _try_pairs(self, then: Callable[[bool], None]) -> None:
        """Try the ways between all hosts, and leave out who does not reach others.

        ``then`` hears whether there is such a host.
        """

        def conclude(broken: Broken) -> None:
            counts = Counter(self._launch.host_of.values() if self._launch else ())
            names = (self.pairs.own_name, *(other.name for other in self._others))
            living = {name: counts[name] for name in names}
            out = left_out(living, [pair for pair in broken if pair <= living.keys()])
            for host in [other for other in self._others if other.name in out]:
                host.dismiss(self.pairs.why(host.name, broken))
            then(bool(out))

        self.pairs.begin(self._hosts, conclude)

    def lose_host(self, host: HostLink, why: str) -> None:
        """Take note that a host is gone with its workers, and let MPI tell the survivors."""
        self.pairs.lose(host)
        if host not in self._hosts:
            self._tell(HostLost(host.name, why, (), leased_s=0.0))
            return
        self._hosts.remove(host)
        self._seen.pop(host, None)
        self._warmed_without(host)
        lost = [hosted for hosted in self.workers if hosted.host is host]
        cause = f"host {host.name} was lost: {why}"
        workers = [hosted.worker for hosted in lost]
        has_first = any(h.pid is not None and h.worker == self._worlds.first for h in lost)
        leased_s = host.leased_s if has_first else 0.0
        self._tell(HostLost(host.name, why, tuple(workers), leased_s=leased_s))
        for hosted in lost:
            hosted.was_killed(cause)
        for hosted in lost:
            self._on_exit(hosted, hosted.lost_event(cause))
        self.prepared.lose_host(host, cause)
        for saves in list(self._saves.values()):
            saves.lose_host(host)
        self._name_worlds()

    def take_guard(self, guard: GuardLink, hello: GuardHello) -> None:
        """Tie a guard that has connected to its worker, or turn it away.

        The guard must be of this launch and of a known rank, and its worker must be alive
        and without a guard.  Any other guard loses its connection, and so its life.
        """
        hosted = self._expecting(hello)
        if hosted is None:
            guard.close()
            hello.close()
            return
        hosted.guard = guard
        begin = LetBegin(hosted.generation, hosted.worker, hello.environment, hello.directory)
        hosted.host.post(begin, hello.connections)
        self._reactor.watch_channel(
            guard.channel, lambda _: None, lambda: hosted.kill("guard lost")
        )
        if hosted.worker in self._workers:
            self._watch()

    def _watch(self) -> None:
        """Fence silent workers from now on.

        One whose own guard never comes is silent too, and the others would wait for it in MPI_Init
        for ever.
        """
        if not self._has_guards:
            self._has_guards = True
            self._post_all(messages.Watch())

    def ask_all(self, what: RequestFlag) -> None:
        """Set a request in every worker's status."""
        for hosted in self.workers:
            hosted.page.ask(what)

    def stop_all(self) -> None:
        """Ask every worker to stop; those that come to no step in time are halted."""
        self.ask_all(RequestFlag.STOP)
        self._halting.order(witnessed_s())

    def kill_all(self, why: str, *, is_urgent: bool = False) -> None:
        """SIGKILL all workers; their ends are reported as they come.

        If it is urgent, what they have left in memory is waited for only a moment.
        """
        self._is_urgent |= is_urgent
        for hosted in self.workers:
            hosted.kill(why)
        self.prepared.drop(why)

    def abandon(self, why: str) -> None:
        """Kill all workers, and let the hosts report their deaths although they may not end.

        Nothing is settled: what hangs may be the writer.
        """
        self.kill_all(why, is_urgent=True)
        self._has_lost_pool, self._is_abandoned = False, True
        self._post_all(messages.Abandon(why))

    def poll(self, now: float) -> None:
        """Look at other hosts, fence workers that come on no more, go on with an order to stop."""
        for host in self._links:
            host.poll(now)
        self._links = [host for host in self._links if not host.has_ended]
        watched = [h for h in self.workers if h.pid is not None and not h.is_condemned]
        self._fencing.poll(
            watched if self._has_guards else [],
            now,
            are_halted=self._halting.is_halting,
            is_one_silent=self._is_one_silent,
        )
        self._halting.poll([h for h in watched if not h.is_condemned], now)
        self._name_worlds()
        limit_s = self._heartbeat_timeout_s
        self._cut_off(self._worlds.left_behind({*self._living}, witnessed_s(), limit_s))
        self.pairs.poll()
        self.prepared.poll()

    def push(self) -> None:
        """Go on with what workers have reported, and let other hosts know what is new of statuses.

        Thousands of workers come to the end of the script at once: all of them are looked at once.
        """
        if self._has_reports:
            self._has_reports = False
            self._look_at_ends()
            self._halting.poll([h for h in self.workers if not h.is_condemned], witnessed_s())
        for host in self._links:
            if host.has_wishes:
                host.push()

    def close(self) -> None:
        """Kill all workers, and end the agents of other hosts, side by side."""
        self.kill_all("the agent ends", is_urgent=True)
        for host in self._links:
            host.end()
        bound = Bound(_OTHERS_END_WITHIN_S)
        for host in self._links:
            host.close(bound.left_s())

    def hear(self, host: HostLink, message: Up) -> None:
        """Take note of what a host part tells."""
        match message:
            case messages.Seen():
                self._take_look(host, message)
            case messages.Found():
                self._fencing.found(message)
            case messages.Met():
                self.pairs.hear(host, message)
            case PlanSaves() if self._launch is not None:
                self._saves[self._launch.generation].plan(host, message)
            case _ if isinstance(message, SaveNews):
                if message.ticket.launch in self._saves:
                    self._saves[message.ticket.launch].hear(host, message)
            case LogText() | Records() | WorkerFenced() | Suspected():
                self._tell(message)
            case WorldFormed():
                self._lead(message)
                self._tell(message)
            case _ if hasattr(message, "worker"):
                self._hear_of(message.worker, message)
                self._name_worlds()
            case Event():
                self._on_event(host, message)

    def _hear_of(self, worker: WorkerId, message: Up) -> None:
        """Take note of what a worker tells, or its host tells of it; it may be gone by now."""
        hosted = self._workers.get(worker)
        if hosted is None:
            self.prepared.hear(worker, message)
            return
        match message:
            case Forked(_, _, pid):
                hosted.pid = pid
            case messages.Killed(_, _, why):
                hosted.was_killed(why)
                self._fencing.drop(hosted.worker)
            case WorkerExited():
                self._on_exit(hosted, message)
            case messages.Described():
                hosted.resident_bytes = message.resident_bytes
                hosted.silent_s = message.silent_s
            case _ if isinstance(message, Event | OwnReport):
                self._on_report(hosted, message)

    def _warmed_without(self, host: HostLink) -> None:
        """Forget a host that was cold, perhaps as the last one."""
        if host in self._cold:
            self._cold.remove(host)
            if self._cold.isdisjoint(self._hosts):
                self._tell(PoolWarmed())

    def _on_event(self, host: HostLink, event: Event) -> None:
        """Pass an event on; another host that can make no worker is as good as lost."""
        match event:
            case PoolLost(reason) if any(other is host for other in self._others):
                next(other for other in self._others if other is host).give_up(reason)
                return
            case PoolLost():
                self._has_lost_pool = True
            case PoolWarmed():
                self._cold.discard(host)
                if not self._cold.isdisjoint(self._hosts):
                    return  # a launch begins to join when the last host is warm
            case PoolRestarted():
                self._cold.add(host)
            case Pressure():
                self.ask_all(RequestFlag.SAVE)
        self._tell(event)

    def _take_look(self, host: HostLink, seen: messages.Seen) -> None:
        self._seen[host] = seen
        for read in seen.read:
            found = self._workers.get(read.worker)
            if found is not None:
                found.characters_read = read.characters

    def _post_all(self, message: Down) -> None:
        for host in self._hosts:
            host.post(message)

    def _expecting(self, hello: GuardHello) -> HostedWorker | None:
        worker = hello.worker_in(self._launch)
        hosted = self.prepared.expecting(hello) if worker is None else self._workers.get(worker)
        if hosted is None or hosted.is_condemned or hosted.guard is not None:
            return None
        return hosted

    def _on_report(self, hosted: HostedWorker, report: Event | OwnReport) -> None:
        launch = self._launch
        is_newest = launch is not None and hosted.generation == launch.generation
        if isinstance(report, SurvivorsMet):
            if is_newest:
                self._worlds.ask(report.worker, report.workers, witnessed_s())
        elif isinstance(report, Event):
            if isinstance(report, WorkerStopped):
                self._halting.order(witnessed_s())  # the script may close what it has open
            if isinstance(report, WorkerFailed):
                hosted.error = report
            self._tell(report)
        else:
            hosted.note(report)
            self._has_reports = True

    def _lead(self, formed: WorldFormed) -> None:
        """Let the hosts know who speaks for the newest world."""
        launch = self._launch
        if launch is None or not formed.workers or formed.generation < self._world:
            return
        if set(formed.workers) <= set(launch.workers):
            self._world = formed.generation
            self._post_all(messages.Lead(formed.workers[0]))

    @property
    def _living(self) -> dict[WorkerId, HostedWorker]:
        """The workers of the newest launch that are not known to be dead."""
        newest = 0 if self._launch is None else self._launch.generation
        of_newest = (h for h in self.workers if h.generation == newest)
        return {hosted.worker: hosted for hosted in of_newest if not hosted.is_condemned}

    def _name_worlds(self) -> None:
        """Answer survivors that ask whether they are the world that goes on."""
        while self._worlds.is_asked:
            word = self._worlds.next_word({*self._living}, witnessed_s())
            if word is None or self._launch is None:
                return
            self._cut_off(word.outside)
            if word.generation != REFUSED:
                # Another head must know which world may go on without this one.
                self._tell(WorldNamed(tuple(sorted(self._worlds.workers))))
                named = messages.NameWorld(self._launch.generation, word.asker, word.generation)
                self._placed[word.asker].post(named)

    def _cut_off(self, workers: Iterable[WorkerId]) -> None:
        for hosted in [self._living[worker] for worker in workers if worker in self._living]:
            hosted.kill(_CUT_OFF)

    def _look_at_ends(self) -> None:
        launch = self._launch
        if launch is not None and look_at_ends(self.workers, launch.workers, self._tell):
            self._post_all(messages.LetLeave(launch.generation))

    def _on_exit(self, hosted: HostedWorker, event: WorkerExited) -> None:
        """Let the guard follow its worker, then tell the end; the last one waits for its saves."""
        has_left = event.is_clean and event.limit is None
        self._has_lost |= not has_left
        event = hosted.placed(event, self._rank_of(hosted))
        guard = hosted.guard
        if guard is not None:
            if has_left:
                guard.release()
            else:
                guard.kill()
            self._reactor.forget(guard.channel)
        hosted.close()
        del self._workers[hosted.worker]
        self._fencing.drop(hosted.worker)
        self._has_reports = True  # those who are left may have waited for this one alone
        if self._workers or event.is_clean or self._is_abandoned:
            self._tell(event)
            return
        if not self._is_urgent:
            self._try_before_the_next()
        assert self._launch is not None  # a worker that ends last may be of an older one
        self._saves[self._launch.generation].settle(event, is_urgent=self._is_urgent)

    def _rank_of(self, hosted: HostedWorker) -> int | None:
        workers = () if self._launch is None else self._launch.workers
        return workers.index(hosted.worker) if hosted.worker in workers else None

    def _try_before_the_next(self) -> None:
        """Keep the end of a launch that was lost until it is known who reaches whom."""

        def go_on(_: bool) -> None:  # noqa: FBT001  (it is an answer)
            self._is_trying = False

        self._is_trying = True
        self._try_pairs(go_on)
