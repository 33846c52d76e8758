"""The head of a job on many hosts: what its loop takes of a core, and when it notices losses.

    python bench/head.py [--hosts 10 200 1000] [--workers 8] [--rate 2] [--seconds 20]

The hosts are simulated by one other process.  Each has pipes of its own, answers pings, and tells
words of its workers' statuses at the rate of an agent; the first one also tells how far training
has come, ten times a second.  Everything on this side is real: `Agent` with its loop, `RemoteHost`,
mirrors, fencing, and what a head asks twice a second.  The share of a core is that of this process.
A remote shell, here ``sleep``, is not counted; all guards are one process and one pipe.
At the end half of the hosts fall silent, and the time until all of them are given up is told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

from holdfast.recovery.event import HostLost
from holdfast.recovery.placement import HostSlots, place_workers
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.agent import Agent, AgentSettings
from holdfast.runtime.host.hosted_worker import GuardHello, GuardLink
from holdfast.runtime.host.pool_process import Forked, PoolSettings
from holdfast.runtime.hosts import wire
from holdfast.runtime.hosts.remote_host import HostStart, RemoteHost
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.progress import StepReport
from holdfast.runtime.run.run_directory import FORMAT, RunRecord
from holdfast.runtime.system.activity import KINDS
from holdfast.runtime.system.channel import LineChannel, Message, to_message
from holdfast.runtime.system.processes import resident_bytes
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.worker_status import Phase

TIMEOUT_S = 10.0
_ALL_ANSWER_WITHIN_S = 120.0
_ASKED_EVERY_S = 0.5


class Head:
    """The agent's loop with many hosts, and no MPI."""

    def __init__(self, folder: Path, hosts: int, workers: int) -> None:
        pool = PoolSettings((), "holdfast.runtime.keras.script_setup:main")
        self.agent = Agent(
            AgentSettings(folder, TIMEOUT_S, pool, os.getpid()),
            lambda *_: None,
            lambda channel: channel.close(),
        )
        self.launch = self.agent.launch
        self.lost: list[str] = []
        self.ready = self.turns = 0
        self._asked_at = 0.0
        names = [HostSlots("head", 0), *(HostSlots(f"h{n}", workers) for n in range(hosts))]
        ids = tuple(map(WorkerId, range(hosts * workers)))
        self.config = WorkerConfig(
            options=JobOptions(script=Path("train.py"), run_dir=folder, workers=len(ids)),
            worker=ids[0],
            generation=1,
            workers=ids,
            record=_record(len(ids)),
            hosts=place_workers(len(ids), names),
        )
        for host in names[1:]:
            self._connect(host.name)

    @property
    def steps(self) -> int:
        """How often a host has told words of its workers: each time makes a step."""
        return sum(hosted.page.step for hosted in self.launch.workers) // len(self.config.workers)

    def begin(self) -> None:
        """Begin the launch, and wait until all hosts have made their workers."""
        self.launch.begin(self.config)
        while not all(hosted.pid for hosted in self.launch.workers):
            self.run(time.monotonic() + 0.1)
        theirs, self._guards_end = os.pipe()
        for rank in range(len(self.config.workers)):
            hello = GuardHello(rank, self.config.generation, "/", {})
            self.launch.take_guard(_Guard(os.dup(theirs)), hello)

    def run(self, until: float) -> None:
        """Loop as a head does until a moment of the monotonic clock."""
        while time.monotonic() < until:
            self.agent.turn()
            self.turns += 1
            while self.agent.events:
                event = self.agent.events.popleft()
                if isinstance(event, HostLost):
                    self.lost.append(event.host)
            if time.monotonic() - self._asked_at > _ASKED_EVERY_S:
                self._asked_at = time.monotonic()
                assert self.launch.progress.living >= 0

    def _connect(self, name: str) -> None:
        greeting = wire.Greeting(name, {}, "/", TIMEOUT_S, (), "")

        def answered() -> None:
            self.ready += 1

        start = HostStart(["sleep", "1d"], greeting)
        of_agent = self.agent.reactor, self.agent.output
        self.launch.start_host(
            lambda hear, lose: RemoteHost(*of_agent, start, hear, lose, answered)
        )

    def close(self) -> None:
        """End all processes."""
        self.agent.close()
        for hosted in self.launch.workers:
            hosted.close()
        os.close(self._guards_end)


class _Guard(GuardLink):
    """A guard that is well, and ends with its connection."""

    pid = os.getpid()

    def __init__(self, reads: int) -> None:
        super().__init__(LineChannel(reads, reads), None)  # type: ignore[arg-type]


def _record(workers: int) -> RunRecord:
    return RunRecord(
        format=FORMAT,
        run_id="bench",
        created=0.0,
        microbatches=workers,
        seed=0,
        threads=1,
    )


def simulate(rate: float) -> None:
    """Be all hosts, whose shells stdin names, until a line of it says that half fall silent."""
    reactor = Reactor()
    far = [_Far(pid) for pid in json.loads(sys.stdin.readline())]
    for host in far:
        reactor.watch_channel(host.channel, host.take, host.channel.close)
    os.set_blocking(0, False)
    began, told, most = time.monotonic(), 0, len(far)
    while True:
        # Each host has its own moment: they are never in step.
        due = began + told / (rate * len(far))
        if (left_s := due - time.monotonic()) > 0:
            reactor.run_once(left_s)
            continue
        if told % len(far) >= len(far) - most:
            far[told % len(far)].tell_words(1 + told // len(far))
        told += 1
        if most == len(far) and told % max(1, round(rate * len(far) / 10)) == 0:
            far[0].tell_progress(1 + told // len(far))
        if told % 10 == 0:
            with contextlib.suppress(BlockingIOError):
                if not os.read(0, 64):
                    return
                most = len(far) - len(far) // 2
                for host in far[: len(far) // 2]:
                    host.is_silent = True


class _Far:
    """One simulated host: it has the other ends of the pipes of a shell that does nothing."""

    def __init__(self, shell: int) -> None:
        ends = Path(f"/proc/{shell}/fd")
        fds = os.open(ends / "0", os.O_RDONLY), os.open(ends / "1", os.O_WRONLY)
        self.channel = LineChannel(*fds)
        self._generation = 0
        self._workers: list[WorkerId] = []
        self.is_silent = False

    def take(self, message: Message) -> None:
        """Answer the head."""
        if self.is_silent:
            return
        if message["kind"] == "Ping":
            self.channel.post({"kind": "Pong", "number": message["number"]})
        elif message["kind"] == "MakeWorkers":
            self._generation, self._workers = message["generation"], message["workers"]
            for worker in self._workers:
                self.channel.post(to_message(Forked(self._generation, worker, 1)))
            self._tell({"phase": Phase.TRAINING})

    def tell_words(self, ticks: int) -> None:
        """Tell what a training changes: beats, steps, pieces of work, and the time they took."""
        spent = [ticks * 12_345_678 * (kind < 8) for kind in range(KINDS)]
        words = {"counter": ticks, "step": ticks, "commits": ticks, "turn": 2 * ticks}
        self._tell(words | {"spent": spent})

    def _tell(self, words: Message) -> None:
        if not self._workers or self.is_silent or self.channel.wants_write:
            return
        of = [{"generation": self._generation, "worker": w, "words": words} for w in self._workers]
        self.channel.post({"kind": "Words", "of": of, "clock": time.monotonic()})

    def tell_progress(self, ticks: int) -> None:
        """Tell how far training has come, as the first worker does."""
        if self._workers and not self.channel.wants_write:
            report = StepReport(time.monotonic(), ticks, 1000, 1, 1, ticks, 1000, {"loss": 0.5})
            words = {"progress": report.encode().decode()}
            of = (wire.Changes(self._generation, WorkerId(0), words),)
            self.channel.post(to_message(wire.Words(of, time.monotonic())))


def main() -> None:
    """Measure, and print some lines for each number of hosts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hosts", type=int, nargs="+", default=[10, 200, 1000])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rate", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--as-hosts", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_hosts:
        simulate(options.rate)
        return
    harness.print_heading("the head of many hosts")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for hosts in options.hosts:
        with tempfile.TemporaryDirectory() as name:
            _measure(Path(name), hosts, options)


def _measure(folder: Path, hosts: int, options: argparse.Namespace) -> None:
    head = Head(folder, hosts, options.workers)
    far = subprocess.Popen(
        [sys.executable, __file__, "--as-hosts", "--rate", str(options.rate)],
        stdin=subprocess.PIPE,
    )
    assert far.stdin is not None
    far.stdin.write(json.dumps(head.launch.shells).encode() + b"\n")
    far.stdin.flush()
    deadline = time.monotonic() + _ALL_ANSWER_WITHIN_S
    while head.ready < hosts and time.monotonic() < deadline:
        head.run(time.monotonic() + 0.2)
    began = time.process_time()
    head.begin()
    print(f"{head.ready} hosts answer; a launch takes {time.process_time() - began:.2f} s")
    head.run(time.monotonic() + 2.0)
    began, wall, steps, turns = time.process_time(), time.monotonic(), head.steps, head.turns
    head.run(wall + options.seconds)
    passed_s = time.monotonic() - wall
    share = (time.process_time() - began) / passed_s
    print(
        f"{hosts} hosts with {options.workers} workers each, {(head.turns - turns) / passed_s:.0f} "
        f"turns a second: {share:.1%} of a core, {(resident_bytes(os.getpid()) or 0) / 2**20:.0f} "
        f"MiB, {len(os.listdir('/proc/self/fd'))} descriptors, "
        f"{(head.steps - steps) / passed_s:.1f} words of a worker a second",
        flush=True,
    )
    far.stdin.write(b"silent\n")
    far.stdin.flush()
    struck = time.monotonic()
    while len(head.lost) < hosts // 2 and time.monotonic() < struck + 6 * TIMEOUT_S:
        head.run(time.monotonic() + 0.1)
    took = time.monotonic() - struck
    print(f"half of them fell silent: {len(head.lost)} were given up after {took:.1f} s")
    head.close()
    far.kill()
    far.wait()


if __name__ == "__main__":
    main()
