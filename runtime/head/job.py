"""What a head is told of its job, and what it tells its client, so that another head can go on.

A `Job` is settled before the head starts (`job_setup`).  A client keeps the `Standing` of the
newest launch.  If the head dies, its workers have died with it, so the next one needs no more: it
counts the launch as lost.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.recovery.event import (
    CheckpointCommitted,
    HostBack,
    HostLost,
    Launch,
    ScaleAsked,
    WorkerExited,
    WorkerJoined,
    WorldNamed,
)
from holdfast.recovery.job import JobTerms
from holdfast.recovery.placement import HostSlots, total_slots, usable_hosts
from holdfast.recovery.world import WorkerId
from holdfast.runtime.head.orders import TimeLimits
from holdfast.runtime.head.visits import Standing
from holdfast.runtime.host.host_messages import LaunchOrder, MpiOrder, News
from holdfast.runtime.host.launchers import LaunchTerms
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.codec import from_plain, to_plain


@dataclass(frozen=True, slots=True)
class Job:
    """A job that may begin.

    Attributes:
        config: what the workers of its first launch are told; later ones have other ids.
        mpiexec, mpi_library: what starts the workers, and the name of the library it belongs to.
        preload: what its pools import.
        missing_modules: modules to preload that are not there; the user was told.
        saved_step: the newest step, None without any.
        struck: the faults of ``--inject`` that have struck in an earlier job of the run.
        limits: its time.
        lost_lines: the lines that the journal has not taken before the job had a head.
        hosts: the hosts of the job, that of the head first; none if there is no other one.
        losses: how often hosts were lost in earlier jobs of the run, of late.
        missing: hosts that were lost and not back when the head before this one died.
        network: the network between them, as CIDR; None if there is no other host.
        facts: what each host has said before the job began (`HostFacts`), as ``hosts``.
        said: the lines of its client before it had a head, which the log of the run lacks.
    """

    config: WorkerConfig
    mpiexec: Path
    mpi_library: str
    preload: tuple[str, ...]
    missing_modules: tuple[str, ...]
    saved_step: int | None
    struck: tuple[tuple[object, ...], ...]
    limits: TimeLimits
    lost_lines: int = 0
    hosts: tuple[HostSlots, ...] = ()
    losses: Mapping[str, int] = dataclasses.field(default_factory=dict)
    missing: tuple[str, ...] = ()
    network: str | None = None
    facts: tuple[Mapping[str, object], ...] = ()
    said: tuple[str, ...] = ()

    @property
    def terms(self) -> JobTerms:
        """The terms of the job's machine."""
        options = self.config.options
        workers = options.workers + options.spares
        usable = usable_hosts(self.hosts, self.losses)
        there = [host for host in usable if host.name not in self.missing]
        return JobTerms(
            workers=workers,
            slots=total_slots(there) if self.hosts else None,
            max_restarts=options.max_restarts,
            can_shrink=options.shrink,
            first_generation=self.config.generation,
            has_checkpoint=self.saved_step is not None,
            spares=options.spares,
        )

    def order_of(self, launch: Launch, **changed: Any) -> LaunchOrder:
        """Return the agent's order for a launch; this was ``changed`` since the job began."""
        options = self.config.options
        config = dataclasses.replace(
            self.config,
            worker=launch.workers[0],
            generation=launch.generation,
            workers=launch.workers,
            **changed,
        )
        network = (self.network or options.network) if self.hosts else None
        terms = LaunchTerms(network, tuple(options.mca))
        mpi = MpiOrder(self.mpiexec, self.mpi_library, options.shrink, terms)
        return LaunchOrder(config, mpi, launch.relaunch, launch.spent)

    def after(self, standing: Standing) -> Job:
        """Return the job as another head has left it: its losses of hosts, and its size.

        Without another host, the launch waits for those that are missing.
        """
        found = dataclasses.replace(self, losses=standing.losses, missing=standing.missing)
        if standing.order is not None:
            last = from_plain(LaunchOrder, standing.order).config.options.workers
            options = dataclasses.replace(self.config.options, workers=standing.asked or last)
            config = dataclasses.replace(self.config, options=options)
            found = dataclasses.replace(found, config=config)
        return found if found.terms.slots else dataclasses.replace(found, missing=())

    @property
    def asked(self) -> list[Any]:
        """What a request for this very job has: it is not fresh, its script, its arguments."""
        options = self.config.options
        return [False, str(options.script), *options.argv]


class LaunchLog:
    """What another head must know of the newest launch, should this one die."""

    def __init__(self, job: Job) -> None:
        self.order: LaunchOrder | None = None
        self.standing = Standing(losses=dict(job.losses), missing=job.missing)
        self._joined: set[WorkerId] = set()
        self._members: set[WorkerId] = set()
        """Those of the world that was named last, as far as they live: one that hangs on the
        head's own host may be none of it."""
        self._is_leased = False
        """Whether a host that was lost has the whole world, and may not know of its loss."""
        self._own = job.hosts[0].name if job.hosts else ""

    @property
    def launched(self) -> int:
        """How many workers the newest launch has, 0 without one."""
        return 0 if self.order is None else len(self.order.config.workers)

    def begin(self, order: LaunchOrder) -> None:
        """Forget the last launch; ``order`` is the agent's order for this one."""
        self.order, self._joined, self._is_leased = order, set(), False
        self._members = set(order.config.workers)
        asked = self.standing.asked
        asked = None if asked is None or asked <= self.launched else asked
        self._stand(order=to_plain(order), is_up=False, saved_step=None, prepared=0, asked=asked)

    def prepare(self, order: LaunchOrder) -> None:
        """Take note of a launch that is to follow: nobody may use its numbers again."""
        self._stand(prepared=self.standing.prepared + len(order.config.workers))

    def note(self, event: News) -> None:
        """Take note of what has happened."""
        before = self.standing
        match event:
            case WorkerJoined(worker):
                self._joined.add(worker)
                self._stand(is_up=self._joined >= self._members)
            case CheckpointCommitted(_, step):
                self._stand(saved_step=step)
            case WorldNamed(workers):
                self._members = set(workers)
                self._stand()
            case WorkerExited(worker):
                self._members.discard(worker)
                self._stand()
            case ScaleAsked(workers):
                self._stand(asked=workers)
            case HostLost(host, leased_s=leased_s):
                self._is_leased |= bool(leased_s)
                losses = {**before.losses, host: before.losses.get(host, 0) + 1}
                self._stand(losses=losses, missing=tuple(dict.fromkeys([*before.missing, host])))
            case HostBack(host):
                self._stand(missing=tuple(name for name in before.missing if name != host))

    def _stand(self, **changed: Any) -> None:
        host_of = {} if self.order is None else self.order.config.host_of
        left = {host_of[worker] for worker in self._members if worker in host_of}
        is_elsewhere = self._is_leased or (bool(left) and self._own not in left)
        self.standing = dataclasses.replace(
            self.standing, may_live_elsewhere=is_elsewhere, **changed
        )
