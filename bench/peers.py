"""An unchanged Keras script under ``holdfast run``, beside Horovod, plain Keras and others.

    python bench/peers.py [--models dnn mlp] [--ways ours-2 tape] [--rounds 3] [--json FILE]
    python bench/peers.py --json FILE --readme             # its tables again, as Markdown
    python bench/peers.py --json FILE --picture peers.svg  # and a picture of them

Each round runs each way of each model once, in turn, as a job of its own with one thread a worker.
A job's speed is the median of its blocks of steps but the first.  The script is `peers_script.py`.
On one host there are also the seconds from the command to the end of the first step, and the
memory of all processes.  FILE has every figure, also of a run that was interrupted.

Horovod 0.28.1 and TensorFlow 2.15 are built once, in a few minutes, into the folder of ``--cache``.
That needs Python 3.11 and a C++ compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import harness
import peers_table
from peers_ways import (
    CASES,
    HOST,
    OF_TWO_WORKERS,
    OVER_LINKS,
    WAYS,
    Case,
    Found,
    Job,
    horovod,
)

from holdfast.runtime.system.processes import marked_processes

CACHE = Path("~/.cache/holdfast-bench")
LOOK_S = 0.25
STARTS = {"dnn": ("plain", "ours-1"), "pipeline": ("plain", "ours-1")}
"""Cases and ways whose first step is timed."""
MEMORIES = {"mlp-adam": ("plain", "ours-2", "tape")}


def main() -> None:
    options = _options()
    if options.readme or options.picture:
        record = json.loads(options.json.read_text(encoding="utf-8"))
        print(peers_table.markdown(record))
        if options.picture:
            options.picture.write_text(peers_table.picture(record), encoding="utf-8")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("peers: stopped"))  # leaves nothing behind
    harness.print_heading("samples/s of Keras models, one thread a worker")
    if {"tape", "tape-yielding", "fit"} & set(options.ways):
        horovod(options.cache)
    figures = Figures(options.json)
    for number in range(options.rounds):
        for name, link, ways in _turns(options):
            for way in ways if number % 2 else reversed(ways):
                try:
                    _measure(figures, Turn(name, link, way, options.cache), memory=number == 0)
                except (RuntimeError, TimeoutError) as error:  # the others are worth their time
                    print(f"{name}, {link}, {way} failed: {error}", file=sys.stderr)
        figures.round += 1
    print(peers_table.markdown(figures.record))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--links", nargs="+", default=[HOST, "1", "10"], help="host, or Gbit/s")
    parser.add_argument("--json", type=Path, default=Path("peers.json"), help="goes on with it")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"default: {CACHE}")
    parser.add_argument("--readme", action="store_true", help="only print what is in the file")
    parser.add_argument("--picture", type=Path, metavar="SVG", help="the same, and draw it")
    return parser.parse_args()


def _turns(options: argparse.Namespace) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each case on each link that it is for, with the ways that it is measured in there."""
    for name in options.models:
        case = CASES[name]
        for link in options.links:
            ways = [way for way in case.ways if link == HOST or way in OVER_LINKS]
            if link == HOST or case.has_links:
                yield name, link, [way for way in ways if way in options.ways]


class Figures:
    """All figures so far, which stand in a file as soon as they are there."""

    def __init__(self, path: Path) -> None:
        """Begin behind the rounds that the file has already."""
        self._path = path
        self.record: harness.Record = {"commands": [], "figures": []}
        if path.exists():
            self.record = json.loads(path.read_text(encoding="utf-8"))
        self.round = 1 + max((each["round"] for each in self.record["figures"]), default=-1)
        command = " ".join(["python", "bench/peers.py", *sys.argv[1:]])
        self.record.update(date=time.strftime("%Y-%m-%d"), machine=harness.machine())
        self.record["commands"] += [command] if command not in self.record["commands"] else []

    def add(self, turn: Turn, what: str, value: float, batch: int = 0) -> None:
        """Add a figure."""
        where = {"model": turn.name, "link": turn.link, "batch": batch, "way": turn.way}
        load = os.getloadavg()[0]
        print("", self.round, *where.values(), what, f"{value:.5g}, load {load:.1f}", flush=True)
        figure = {"round": self.round, **where, "what": what, "value": value, "load": load}
        self.record["figures"].append(figure)
        self._path.write_text(json.dumps(self.record, indent=1), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Turn:
    """A way of one case on one link."""

    name: str
    link: str
    way: str
    cache: Path

    @contextmanager
    def job(self, *, first_step: bool = False) -> Iterator[Job]:
        """Make a job, with its hosts if there are any."""
        with contextlib.ExitStack() as held:
            directory = held.enter_context(harness.private_directory())
            cluster = None
            if self.link != HOST:
                from cluster import Cluster

                cluster = held.enter_context(Cluster(directory, ("a", "b")))
                cluster.shape(round(float(self.link) * 1e9))
            yield Job(directory, CASES[self.name], self.cache, cluster, first_step)


def _measure(figures: Figures, turn: Turn, *, memory: bool) -> None:
    """Run the jobs of a turn in a round; with ``memory`` also one that is looked at."""
    with turn.job() as job:
        found = job.run(turn.way)
    for batch, speed in _speeds(found, CASES[turn.name], turn.way).items():
        figures.add(turn, "samples/s", speed, batch)
    if turn.way in STARTS.get(turn.name, ()):
        with turn.job(first_step=True) as job:
            begun = time.monotonic()
            found = job.run(turn.way)
        ended = min(blocks[0][1] for each in found for blocks in each.values())
        figures.add(turn, "first step, s", ended - begun)
    if memory and turn.way in MEMORIES.get(turn.name, ()):
        with turn.job() as job, looking(job) as looks:
            (_, (begun, _), *_, (_, ended)), *_ = job.run(turn.way)[0].values()
        during = [size for moment, size in looks if begun < moment < ended]
        figures.add(turn, "memory, bytes", statistics.median(during))
        figures.add(turn, "most memory, bytes", max(size for _, size in looks))


def _speeds(found: Found, case: Case, way: str) -> dict[int, float]:
    """Return samples a second by batch: each process has its median block, and all add up."""
    speeds = dict.fromkeys(case.steps, 0.0)
    workers = 2 if way in OF_TWO_WORKERS else 1
    for each in found[:1] if workers > 1 else found:  # workers train in step
        for batch, (_, *blocks) in each.items():
            median = statistics.median(end - begin for begin, end in blocks)
            speeds[batch] += workers * case.steps[batch] * batch / median
    return speeds


@contextmanager
def looking(job: Job) -> Iterator[list[tuple[float, int]]]:
    """Look at the memory of all processes of a job again and again: their sizes, by moment.

    A page of several processes counts in each of them with its share (PSS).
    """
    looks: list[tuple[float, int]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOK_S):
            pids = marked_processes(f"{harness.RESULT_VARIABLE}={job.result}")
            looks.append((time.monotonic(), sum(map(_share, pids))))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        ended.set()
        thread.join()


def _share(pid: int) -> int:
    with contextlib.suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0


if __name__ == "__main__":
    main()
