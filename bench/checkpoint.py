"""Saving and restoring a state: holdfast against raw writes and seven peers.

    python bench/checkpoint.py [--sizes-mb 200 2000] [--where disk tmpfs] [--rounds 12]

Each round writes and restores the same state with every installed way, one after the
other and backwards every second time.  A write counts twice: until the call returns, and
until every file is synced.  This program syncs for the ways that do not.  A restore reads
the files that were just written, so it comes from the page cache, into fresh arrays.
Rounds of their own measure two more times: how long a snapshot stops the training, and how
much slower a training loop is while a niced process writes that snapshot.  Two more compare
the committer with itself: with a read-back due after the save, and for 64 workers.  The last
compares several hosts with one, if each has a link of its own that is limited alike.

Other load makes single rounds slow and never fast, so bounds are held against the best round.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import harness
from saves.commits import DUE, FEW, MANY, NOT_DUE, measure_read_back, measure_workers
from saves.hosts import RESTORE, SAVE, measure_hosts
from saves.stall import Stalls, measure_stalls
from saves.state import State, make_state, size_of
from saves.training import speeds
from saves.ways import IMAGE, OURS, RAW, Way, find_ways, sync_tree

MEMORY = Path("/dev/shm")
SPACE_FACTOR, SPACE_BYTES = 6, 2**30

WRITE_BOUND = 1.1
RESTORE_BOUND_GBS, RESTORE_BOUND = 2.5, 0.9
STALL_BOUND = 1.4
TRAINING_BOUND = 0.75
READ_BACK_BOUND = 1.1
WORKERS_BOUND = 2.0
HOSTS_BOUNDS = {SAVE: 0.45, RESTORE: 0.5}


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one way, one entry a round."""

    returned: list[float] = field(default_factory=list)
    durable: list[float] = field(default_factory=list)
    restored: list[float] = field(default_factory=list)


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    harness.print_heading("checkpoint")
    for size_mb in options.sizes_mb:
        state = make_state(size_mb * 10**6)
        print(f"\n{size_of(state) / 1e6:.0f} MB in {len(state)} tensors of float32", flush=True)
        if "stall" in options.parts:
            _report_stalls(measure_stalls(state, options.rounds))
        for where in options.where:
            parent = Path(options.disk_directory) if where == "disk" else MEMORY
            _measure_place(where, parent, state, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes-mb", type=int, nargs="+", default=[200])
    parser.add_argument("--where", nargs="+", choices=("disk", "tmpfs"), default=["disk", "tmpfs"])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--ways", nargs="*", metavar="WORD", help="only peers with such a word")
    parser.add_argument("--hosts", type=int, default=3, help="compared with one (default: 3)")
    parser.add_argument("--link-mb-per-s", type=int, default=100, help="of a host (default: 100)")
    parts = ("stall", "files", "training", "commits", "hosts")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--disk-directory", default=".", help="where the disk is (default: here)")
    return parser.parse_args()


def _measure_place(where: str, parent: Path, state: State, options: argparse.Namespace) -> None:
    """Measure in a directory of its own that is removed, if there is room for it."""
    needed = SPACE_FACTOR * size_of(state) + SPACE_BYTES
    if not parent.is_dir() or shutil.disk_usage(parent).free < needed:
        print(f"{where}: skipped, {parent} has not {needed / 1e9:.1f} GB free", flush=True)
        return
    with tempfile.TemporaryDirectory(
        prefix=".holdfast-bench-", dir=parent, ignore_cleanup_errors=True
    ) as name:
        if "files" in options.parts:
            ways = find_ways(state, options.ways)
            _report_files(where, _time_ways(ways, state, Path(name), options.rounds), ways, state)
        if "training" in options.parts:
            _report_training(where, speeds(state, Path(name), options.rounds))
        if "commits" in options.parts:
            _report_commits(where, state, Path(name), options.rounds)
        if "hosts" in options.parts:
            _report_hosts(where, state, Path(name), options)


def _time_ways(ways: Sequence[Way], state: State, directory: Path, rounds: int) -> dict[str, Times]:
    times = {way.name: Times() for way in ways}
    for way in ways:
        _time_round(way, directory, Times(), expected=state)
    for turn in range(rounds):
        for way in ways if turn % 2 else reversed(ways):
            _time_round(way, directory, times[way.name])
    return times


def _time_round(way: Way, directory: Path, times: Times, expected: State | None = None) -> None:
    """Write and restore once; compare the restored state with ``expected`` if it is given."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        begin = time.perf_counter()
        way.write(Path(name))
        times.returned.append(time.perf_counter() - begin)
        if not way.syncs:
            sync_tree(Path(name))
        times.durable.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        found = way.restore(Path(name))
        times.restored.append(time.perf_counter() - begin)
        if expected is not None:
            _refuse_other(way, found, expected)


def _refuse_other(way: Way, found: State, expected: State) -> None:
    for name, tensor in expected.items():
        if found[name].tobytes() != tensor.tobytes():
            raise RuntimeError(f"{way.name} restored another {name} than it wrote")


def _report_files(where: str, times: dict[str, Times], ways: Sequence[Way], state: State) -> None:
    print(f"{where}: ms, best and median (min to max) ratio to {RAW}")
    gigabytes = size_of(state) / 1e9
    for way in ways:
        mine, raw = times[way.name], times[RAW]
        print(
            f"  {way.name:22} write {_ms(mine.returned)}{' ' if way.syncs else '*'}"
            f" durable {_ms(mine.durable)} {_spread(mine.durable, raw.durable)}"
            f"  restore {_ms(mine.restored)}{' ' if way.verifies else '*'}"
            f" {gigabytes / min(mine.restored):5.2f} GB/s {_spread(mine.restored, raw.restored)}"
        )
    print("  * returns before anything is durable; restores without comparing a checksum")
    for name in (OURS, IMAGE):
        ratio = min(times[name].durable) / min(times[RAW].durable)
        _judge(f"{name}, write", ratio, f"<= {WRITE_BOUND} x raw", holds=ratio <= WRITE_BOUND)
    speed = gigabytes / min(times[OURS].restored)
    share = min(times[RAW].restored) / min(times[OURS].restored)
    _judge(
        f"{OURS}, restore and verify at {speed:.2f} GB/s",
        share,
        f">= {RESTORE_BOUND_GBS} GB/s or >= {RESTORE_BOUND} x the speed of the plain read",
        holds=speed >= RESTORE_BOUND_GBS or share >= RESTORE_BOUND,
    )


def _report_stalls(stalls: Stalls) -> None:
    size_bytes = stalls.size_bytes
    print(f"training stall of one of two workers, which copies {size_bytes / 1e6:.0f} MB:")
    print("ms, best, and median (min to max) ratio to the copies of the tensors")
    for name, seconds in stalls.seconds.items():
        print(
            f"  {name:22} {_ms(seconds)} {size_bytes / 1e9 / min(seconds):5.2f} GB/s"
            f" {_spread(seconds, stalls.copies)}"
        )
    ratio = min(stalls.ours) / min(stalls.copies)
    _judge("stall", ratio, f"<= {STALL_BOUND} x memcpy", holds=ratio <= STALL_BOUND)


def _report_training(where: str, measured: dict[str, list[float]]) -> None:
    """Print the share of the training speed that is left while a save is in flight."""
    print(f"{where}: training, steps/s of one thread while another process writes")
    for name, rates in measured.items():
        spread = harness.Spread.of(harness.ratios(rates, measured["idle"]))
        print(f"  {name:22} {max(rates):8.0f}  {spread.text()}")
    ratio = max(measured["saving"]) / max(measured["idle"])
    _judge("training", ratio, f">= {TRAINING_BOUND} of idle", holds=ratio >= TRAINING_BOUND)


def _report_commits(where: str, state: State, directory: Path, rounds: int) -> None:
    """Print the time of saves in the committer, each way in units of the simpler one."""
    few, many = f"{FEW} workers", f"{MANY} workers"
    print(f"{where}: ms from a save in memory, and from the wish of workers, to the answer")
    for name, peer, bound, measure in (
        (DUE, NOT_DUE, READ_BACK_BOUND, measure_read_back),
        (many, few, WORKERS_BOUND, measure_workers),
    ):
        seconds = measure(state, directory, rounds)
        for way in (peer, name):
            spread = _spread(seconds[way], seconds[peer])
            print(f"  {way:22} {_ms(seconds[way])} {spread}")
        ratio = min(seconds[name]) / min(seconds[peer])
        _judge(name, ratio, f"<= {bound} x {peer}", holds=ratio <= bound)


def _report_hosts(where: str, state: State, directory: Path, options: argparse.Namespace) -> None:
    """Print the time of saves and of reads by several hosts, in units of that of one host."""
    link, hosts = options.link_mb_per_s, options.hosts
    print(f"{where}: ms of {hosts} hosts and of one, each with a link of {link} MB/s")
    measured = measure_hosts(state, directory, options.rounds, hosts, link * 1e6)
    for what, seconds in measured.items():
        one, several = seconds.values()
        for name, mine in seconds.items():
            print(f"  {what:15} {name:8} {_ms(mine)} {_spread(mine, one)}")
        ratio, bound = min(several) / min(one), HOSTS_BOUNDS[what]
        _judge(what, ratio, f"<= {bound} x one host", holds=ratio <= bound)


def _ms(seconds: Sequence[float]) -> str:
    return f"{1e3 * min(seconds):7.1f}"


def _spread(ours: Sequence[float], peers: Sequence[float]) -> str:
    return harness.Spread.of(harness.ratios(ours, peers)).text()


def _judge(what: str, value: float, bound: str, *, holds: bool) -> None:
    print(f"  {what}: best {value:.2f}, bound {bound}: {harness.verdict(holds=holds)}", flush=True)


if __name__ == "__main__":
    main()
