"""The head of a job on many hosts: what its loop takes of a core, and when it notices losses.

    python bench/head.py [--hosts 200] [--workers 10] [--rate 20] [--seconds 20]

The hosts are simulated by one other process: each has a connection of its own, answers pings, and
tells words of its workers' statuses so many times a second.  Everything on this side is real: the
loop of an agent, `RemoteHost`, mirrors, fencing.  The share of a core is that of this process, and
the shells between, two `cat` for each host, are not counted: a real shell is a process as well.
At the end half of the hosts fall silent, and the time until all of them are given up is told.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

from holdfast.recovery.event import HostLost
from holdfast.recovery.placement import HostSlots, place_workers
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host import Host, LocalHost
from holdfast.runtime.host.host_messages import News
from holdfast.runtime.host.hosted_launch import HostedLaunch
from holdfast.runtime.host.limits import HostLimits
from holdfast.runtime.host.output import OutputForwarder, Streams
from holdfast.runtime.host.pool_process import PoolSettings
from holdfast.runtime.hosts.remote_host import HostStart, RemoteHost
from holdfast.runtime.hosts.wire import Greeting
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.run_directory import FORMAT, RunRecord
from holdfast.runtime.system.channel import LineChannel, Message
from holdfast.runtime.system.processes import resident_bytes
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.witnessed_time import witnessed_s
from holdfast.runtime.system.worker_status import pulse_interval_s

TIMEOUT_S = 10.0
_ALL_ANSWER_WITHIN_S = 120.0


class Head:
    """The agent's loop with many hosts, and no MPI."""

    def __init__(self, folder: Path, hosts: int, workers: int) -> None:
        self.reactor = Reactor()
        self.output = OutputForwarder(Streams().put, verbose=False)
        self.lost: list[str] = []
        self.ready = 0
        self._polled_at = witnessed_s()
        own = LocalHost()
        parts = self.reactor, self._heard, [own]
        self.launch = own.launch = HostedLaunch(*parts, heartbeat_timeout_s=TIMEOUT_S)
        self.host = own.host = Host(
            *(self.reactor, self.output, own.tell),
            heartbeat_timeout_s=TIMEOUT_S,
            pool=PoolSettings((), "holdfast.runtime.keras.script_setup:main"),
            limits=HostLimits(Path("/dev/shm/holdfast")),
        )
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
            self._connect(folder, host.name)

    @property
    def steps(self) -> int:
        """How often a host has told words of its workers: each time makes a step."""
        return sum(hosted.page.step for hosted in self.launch.workers) // len(self.config.workers)

    def run(self, until: float) -> None:
        """Loop as an agent does until a moment of the monotonic clock."""
        pause_s = pulse_interval_s(TIMEOUT_S)
        while time.monotonic() < until:
            self.reactor.run_once(max(0.0, min(pause_s, until - time.monotonic())))
            self.launch.push()
            now = witnessed_s()
            if now - self._polled_at >= pause_s:
                self._polled_at = now
                self.host.poll(now, self.launch.shells)
                self.launch.poll(now)

    def _connect(self, folder: Path, name: str) -> None:
        there, back = folder / f"{name}.in", folder / f"{name}.out"
        command = ["sh", "-c", f"cat {back} & exec cat > {there}"]
        greeting = Greeting(name, {}, "/", TIMEOUT_S, (), "")

        def answered() -> None:
            self.ready += 1

        self.launch.start_host(
            lambda hear, lose: RemoteHost(
                self.reactor, self.output, HostStart(command, greeting), hear, lose, answered
            )
        )

    def _heard(self, news: News) -> None:
        if isinstance(news, HostLost):
            self.lost.append(news.host)


def _record(workers: int) -> RunRecord:
    return RunRecord(
        format=FORMAT,
        run_id="bench",
        created=0.0,
        microbatches=workers,
        seed=0,
        threads=1,
    )


def simulate(folder: Path, hosts: int, rate: float) -> None:
    """Be all hosts: answer pings, and tell words of the workers, until stdin says otherwise."""
    reactor, far = Reactor(), [_Far(folder, f"h{number}") for number in range(hosts)]
    for host in far:
        reactor.watch_channel(host.channel, host.take, host.channel.close)
    os.set_blocking(0, False)
    ticks, living = 0, far
    while True:
        reactor.run_once(1 / rate)
        ticks += 1
        for host in living:
            host.tell_words(ticks)
        try:
            order = os.read(0, 64)
        except BlockingIOError:
            continue
        if not order:
            return
        living = far[hosts // 2 :]
        for host in far[: hosts // 2]:
            host.is_silent = True


class _Far:
    """One simulated host."""

    def __init__(self, folder: Path, name: str) -> None:
        flags = os.O_RDWR  # a FIFO that is opened so waits for nobody
        self.channel = LineChannel(
            os.open(folder / f"{name}.in", flags), os.open(folder / f"{name}.out", flags)
        )
        self._line = ""
        """A message of its workers' words, in which WORDS and NOW stand for their values."""
        self.is_silent = False

    def take(self, message: Message) -> None:
        """Answer the head."""
        if self.is_silent:
            return
        if message["kind"] == "Ping":
            self.channel.post({"kind": "Pong", "number": message["number"]})
        elif message["kind"] == "MakeWorkers":
            generation, workers = message["generation"], message["workers"]
            one = f'{{"generation":{generation},"worker":NUMBER,"words":WORDS}}'
            of = ",".join(one.replace("NUMBER", str(worker)) for worker in workers)
            self._line = f'{{"kind":"Words","clock":NOW,"of":[{of}]}}\n'

    def tell_words(self, ticks: int) -> None:
        """Tell what a training changes: beats, steps and pieces of work."""
        if not self._line or self.is_silent or self.channel.wants_write:
            return
        words = f'{{"counter":{ticks},"step":{ticks},"commits":{ticks},"turn":{2 * ticks}}}'
        line = self._line.replace("WORDS", words).replace("NOW", f"{time.monotonic():.6f}")
        os.write(self.channel.write_fd, line.encode())


def main() -> None:
    """Measure, and print two lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--as-hosts", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_hosts is not None:
        simulate(options.as_hosts, options.hosts, options.rate)
        return
    harness.print_heading("the head of many hosts")
    with tempfile.TemporaryDirectory() as name:
        _measure(Path(name), options)


def _measure(folder: Path, options: argparse.Namespace) -> None:
    for number in range(options.hosts):
        os.mkfifo(folder / f"h{number}.in")
        os.mkfifo(folder / f"h{number}.out")
    arguments = ["--as-hosts", str(folder), "--hosts", str(options.hosts)]
    far = subprocess.Popen(
        [sys.executable, __file__, *arguments, "--rate", str(options.rate)], stdin=subprocess.PIPE
    )
    head = Head(folder, options.hosts, options.workers)
    deadline = time.monotonic() + _ALL_ANSWER_WITHIN_S
    while head.ready < options.hosts and time.monotonic() < deadline:
        head.run(time.monotonic() + 0.2)
    began = time.process_time()
    head.launch.begin(head.config)
    print(f"{head.ready} hosts answer; a launch takes {1e3 * (time.process_time() - began):.0f} ms")
    head.run(time.monotonic() + 2.0)
    began, wall, steps = time.process_time(), time.monotonic(), head.steps
    head.run(wall + options.seconds)
    passed_s = time.monotonic() - wall
    share = (time.process_time() - began) / passed_s
    print(
        f"{options.hosts} hosts with {options.workers} workers each, "
        f"{(head.steps - steps) / passed_s:.1f} times a second: {share:.1%} of a core, "
        f"{(resident_bytes(os.getpid()) or 0) / 2**20:.0f} MiB"
    )
    assert far.stdin is not None
    far.stdin.write(b"silent\n")
    far.stdin.flush()
    struck = time.monotonic()
    while len(head.lost) < options.hosts // 2 and time.monotonic() < struck + 6 * TIMEOUT_S:
        head.run(time.monotonic() + 0.1)
    took = time.monotonic() - struck
    print(f"half of them fell silent: {len(head.lost)} were given up after {took:.1f} s")
    head.launch.close()
    head.host.close()
    far.kill()
    far.wait()


if __name__ == "__main__":
    main()
