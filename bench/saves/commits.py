"""Two questions about the host's committer: what read-backs cost, and what many workers cost.

Both are asked with the real parts: a committer with its care of old steps; and the agent's
handle on its writer, with workers that are processes and copy their shares.  No worker
trains, and none digests its whole state, which n workers on two cores would do n times.
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import share_of
from holdfast.checkpoint.retention import FEWEST_KEPT
from holdfast.checkpoint.shares import note_part
from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.saves import (
    SaveAnswered,
    SaveCoordinator,
    SaveOrder,
    SaveTicket,
    Settled,
)
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Records
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.saving.save_memory import BUFFERS, HostBuffers, SaveMemory
from holdfast.runtime.saving.save_messages import AskMemory, PartCopied, PlanSaves, WriterAnswer
from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.channel import Channel, Message, pair
from holdfast.runtime.system.codec import encode, from_plain, to_plain
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.witnessed_time import witnessed_s
from saves.committed_save import KEEP_ALL, RUN_ID, CopiedState, committer, plan_of, ticket_of
from saves.state import State

DUE, NOT_DUE = "read-back is due", "no read-back is due"
FEW, MANY = 2, 64
_CARE_ENDS_WITHIN_S = 60.0


def measure_read_back(state: State, directory: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds until a save is acknowledged, with and without a read-back after it.

    A step is read back before an older one is removed for it.
    """
    copied = CopiedState(state)
    plans = {
        DUE: plan_of(directory / "due", state, FEWEST_KEPT),
        NOT_DUE: plan_of(directory / "not-due", state, KEEP_ALL),
    }
    committers = {name: committer(plan) for name, plan in plans.items()}
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for turn in range(-FEWEST_KEPT, rounds):
        for name in plans if turn % 2 else reversed(plans):
            step = turn + FEWEST_KEPT + 1
            copied.copy(step)
            begin = time.perf_counter()
            copied.commit(committers[name])
            if turn >= 0:
                seconds[name].append(time.perf_counter() - begin)
            _wait_for_care(committers[name].store, has_pruned=name == DUE)
    for each in committers.values():
        each.close(_CARE_ENDS_WITHIN_S)
        shutil.rmtree(each.store.directory)  # in tmpfs it is memory, which the workers need
    copied.close()
    return seconds


def _wait_for_care(store: CheckpointStore, *, has_pruned: bool) -> None:
    """Wait until old steps are removed; where none would be, remove them here."""
    if not has_pruned:
        _remove_all_but_newest(store)
        return
    deadline = time.monotonic() + _CARE_ENDS_WITHIN_S
    while len(store.steps()) > FEWEST_KEPT and time.monotonic() < deadline:
        time.sleep(0.01)


def _remove_all_but_newest(store: CheckpointStore) -> None:
    for path in sorted(store.directory.glob("step-*"))[:-1]:
        shutil.rmtree(path)


def measure_workers(state: State, directory: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of a save of 2 and of 64 workers, from the wish to the answer."""
    hosts = {
        f"{workers} workers": _Host(state, directory / str(workers), workers)
        for workers in (FEW, MANY)
    }
    seconds: dict[str, list[float]] = {name: [] for name in hosts}
    for turn in range(-BUFFERS, rounds):  # both buffers are taken before
        for name in hosts if turn % 2 else reversed(hosts):
            took = hosts[name].save(turn + BUFFERS + 1)
            if turn >= 0:
                seconds[name].append(took)
    for host in hosts.values():
        host.close()
    return seconds


class _Host:
    """An agent and its head, and workers that copy their shares when they are told to."""

    def __init__(self, state: State, run_dir: Path, workers: int) -> None:
        run_dir.mkdir()
        self._plan = plan_of(run_dir, state)
        self._reactor = Reactor()
        self._memory = SaveMemory(lambda: ())
        self._link = WriterLink(self._reactor, self._take, self._memory)
        self._link.start()
        self._saves = SaveCoordinator(1)
        self._answers: list[SaveAnswered] = []
        self._ready = 0
        self._processes: list[multiprocessing.process.BaseProcess] = []
        layout, image_map = self._plan.layout_id(0, 1), self._plan.image_map(0, 1)
        question = AskMemory(layout, image_map.size, image_map.nbytes)
        self._buffers, _ = self._memory.buffers(1, question)
        plan = PlanSaves(1, layout, encode(self._plan).decode(), 0, 1)
        self._memory.plan(1, plan)
        self._link.use(self._buffers)
        self._link.plan(plan)
        self._workers = [self._start(state, part, workers) for part in range(workers)]
        self._wait_until(lambda: self._ready == workers)

    def save(self, step: int) -> float:
        """Save as ``step``; return the seconds until the save is answered."""
        ticket = ticket_of(step)
        before = len(self._answers)
        begin = time.perf_counter()
        for worker in self._workers:
            worker.post(to_plain(ticket))
        self._wait_until(lambda: len(self._answers) > before)
        took = time.perf_counter() - begin
        if not self._answers[-1].is_durable:
            raise RuntimeError(f"a save failed: {self._answers[-1]}")
        _remove_all_but_newest(CheckpointStore(self._plan.config.options.run_dir))
        return took

    def close(self) -> None:
        """End workers and writer."""
        for process in self._processes:
            process.terminate()
            process.join()
        for worker in self._workers:
            self._reactor.forget(worker)
            worker.close()
        self._link.close()
        self._memory.close()
        self._reactor.close()

    def _take(self, told: WriterAnswer | Notice | Records) -> None:
        if isinstance(told, Notice):
            print(told.text, flush=True)
        elif not isinstance(told, Records):
            self._carry_out(self._saves.take(told))

    def _carry_out(self, orders: Iterable[SaveOrder]) -> None:
        for order in orders:
            if isinstance(order, SaveAnswered):
                self._answers.append(order)
            elif not isinstance(order, Settled):
                self._link.work(order)

    def _start(self, state: State, part: int, parts: int) -> Channel:
        """Fork a worker, which has the state already."""
        ours, theirs = pair()
        work = (theirs, self._plan, state, self._buffers.fds, (part, parts))
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_work, args=work, daemon=True)
        process.start()
        self._processes.append(process)
        theirs.close()
        self._reactor.watch_channel(ours, self._hear, lambda: None)
        return ours

    def _hear(self, line: Message) -> None:
        if line:
            held = self._memory.take_part(from_plain(PartCopied, line))
            self._carry_out(self._saves.take(held) if held is not None else ())
        else:
            self._ready += 1

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._reactor.run_once(10.0)
            self._link.poll(witnessed_s())


def _work(
    agent: Channel, plan: SavePlan, state: State, fds: Sequence[int], part: tuple[int, int]
) -> None:
    """Be one worker, ``part`` of so many: copy a share of the state whenever the agent asks."""
    image_map = plan.image_map(0, 1)
    share = ShareImage(image_map, share_of(image_map, *part), RUN_ID)
    buffers = HostBuffers.of_agent(fds)
    for attempt in range(len(buffers)):
        buffers.touch(attempt, share.spans())
    agent.send({})  # it is ready
    while (line := agent.receive()) is not None:
        ticket = from_plain(SaveTicket, line)
        header = plan.header(ticket)
        memory = buffers[buffers.place_of(ticket.attempt)]
        share.copy(memory, state, header)
        share.describe(memory, state, header)
        note_part(memory, *part, ticket.key, "00" * 16)
        agent.send(to_plain(PartCopied(ticket, 0, 0.0, None if part[0] else "{}")))
