"""The trace of a run: what each worker did when, in files of bounded size, and for Perfetto.

A line is a `TracePiece`: the words of one worker's ring since its last piece
(`system.timeline`), as they are.  So nobody takes them apart while the job runs.  When a file
is full, the next one follows.  The first file stays, and the newest ones: the begin of a run,
and its last hours.  A job that goes on with a run goes on with its trace.

The trace is for people.  Nothing waits for it, and a line that cannot be written is lost.

Perfetto and Chrome read it as trace events, in JSON.  A host is a *process* of it, and a worker one
of its threads.  Spans come from the trace, and all else from the journal: launches, recoveries,
saves, and what people are told.  Both have the time of the head.  Clocks of other hosts are set by
the fastest message that has come from there, so they are right to the time that such a one takes.
A span lasts until the next one of its worker begins.  The last one ends with the worker.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.checkpoint_events import Checkpoint, CheckpointFailed
from holdfast.runtime.run.entries import Entry
from holdfast.runtime.run.events import JobEnded, LaunchBegan, Recovery
from holdfast.runtime.run.files import open_to_read
from holdfast.runtime.run.journal import AppendedFile, fields_of
from holdfast.runtime.run.run_directory import Ownership
from holdfast.runtime.system.codec import WrongValue, decode
from holdfast.runtime.system.timeline import Activity, Change, changes_in

_FILE_BYTES = 8 << 20
"""About 700,000 spans."""

_NEWEST = 3
_SUFFIX = ".jsonl"


@dataclass(frozen=True, slots=True)
class TracePiece:
    """What one worker did since its last piece.

    Attributes:
        host: the name of its host, empty if the job has one.
        step: one that it had come to when the words were read, at ``clock_s`` of its host.
        lost: how many words the ring has lost before these.
        offset_s: how far the time since 1970 is ahead of that clock; until the head has the piece,
            how far its own clock is.
    """

    host: str
    worker: WorkerId
    generation: int
    step: int
    words: str
    lost: int
    clock_s: float
    offset_s: float

    @property
    def changes(self) -> Iterator[Change]:
        """The changes of activity in it."""
        return changes_in(base64.b64decode(self.words), self.step)


class TraceFiles(AppendedFile):
    """The files, as their writer has them, one after the other."""

    def __init__(
        self,
        folder: Path,
        owner: Ownership,
        warn: Callable[[str], None],
        file_bytes: int = _FILE_BYTES,
    ) -> None:
        super().__init__(folder, owner, lambda lines: b"")
        self._folder = folder
        self._warn = warn
        self._file_bytes = file_bytes
        self._has_warned = False

    def write(self, line: str) -> None:
        """Append a line, or lose it."""
        reason = self.append(f"{line}\n".encode())
        if reason and not self._has_warned:
            self._has_warned = True
            self._warn(f"the trace in {self._folder} has gaps: {reason}")

    def open(self) -> None:
        """Open the newest file, or the first one."""
        if self._path == self._folder:
            self._path = _path_of(self._folder, max(_numbers(self._folder), default=1))
        super().open()

    def _make_room(self, nbytes: int) -> None:
        if os.fstat(self._fd).st_size + nbytes <= self._file_bytes:
            return
        self._path = _path_of(self._folder, max(_numbers(self._folder), default=0) + 1)
        self.open()
        for number in sorted(_numbers(self._folder))[1:-_NEWEST]:  # those of the middle
            with contextlib.suppress(OSError):
                _path_of(self._folder, number).unlink()


def _path_of(folder: Path, number: int) -> Path:
    return folder / f"{number:06}{_SUFFIX}"


def _numbers(folder: Path) -> list[int]:
    with contextlib.suppress(FileNotFoundError):
        names = (Path(name) for name in os.listdir(folder))
        return [int(n.stem) for n in names if n.suffix == _SUFFIX and n.stem.isdecimal()]
    return []


def read_trace(folder: Path) -> Iterator[TracePiece]:
    """Yield the pieces of a trace, those of a worker in their order; torn lines are skipped.

    Raises:
        UsageError: there is no trace, or it cannot be read.
    """
    try:
        numbers = sorted(_numbers(folder))
        if not numbers:
            raise UsageError(f"{folder.parent} has no trace: run the job with --trace")
        for number in numbers:
            with open_to_read(_path_of(folder, number)) as file:
                for line in file:
                    with contextlib.suppress(WrongValue, ValueError):
                        yield decode(TracePiece, line)
    except OSError as error:
        raise UsageError(f"{folder} cannot be read: {error.strerror or error}") from error


_US = 1e6
_JOB = 0
_TRACKS = ("launches", "recoveries", "events", "saves")
_LAUNCHES, _RECOVERIES, _TOLD, _SAVES = ((_JOB, track) for track in range(len(_TRACKS)))
_Json = dict[str, Any]


class WorkerSpan(NamedTuple):
    """A worker in one activity; moments are in microseconds since 1970."""

    host: str
    worker: int
    generation: int
    activity: Activity
    step: int
    begin_us: int
    end_us: int


def spans_of(pieces: Iterable[TracePiece]) -> list[WorkerSpan]:
    """Return all spans of a trace; those of a worker in their order, without overlap."""
    of_workers: dict[tuple[int, int], list[TracePiece]] = {}
    for piece in pieces:
        of_workers.setdefault((piece.generation, piece.worker), []).append(piece)
    # One offset for a host in a launch: what differs between pieces is how long messages took.
    offsets = {(p.generation, p.host): p.offset_s for of in of_workers.values() for p in of}
    found: list[WorkerSpan] = []
    for of_worker in of_workers.values():
        one = of_worker[0]
        offset_us = round(_US * offsets[one.generation, one.host])
        found += (
            WorkerSpan(
                one.host,
                one.worker,
                one.generation,
                change.activity,
                change.step,
                change.at_us + offset_us,
                end_us + offset_us,
            )
            for change, end_us in _ended(of_worker)
        )
    return found


def _ended(pieces: Sequence[TracePiece]) -> Iterator[tuple[Change, int]]:
    """Yield each change of a worker with the end of its span; before a gap nobody knows it."""
    before: Change | None = None
    for piece in pieces:
        if piece.lost:
            before = None
        for change in piece.changes:
            if before is not None:
                yield before, change.at_us
            before = change
    end_us = round(_US * pieces[-1].clock_s)
    if before is not None and end_us > before.at_us:
        yield before, end_us


def write_trace(
    pieces: Iterable[TracePiece], entries: Sequence[Entry[Any]], file: TextIO
) -> Counter[str]:
    """Write a trace as JSON; return how many spans of workers it has, by activity."""
    spans = spans_of(pieces)
    hosts = {host: n for n, host in enumerate(sorted({s.host for s in spans}), start=_JOB + 1)}
    begun = [span.begin_us for span in spans] + [_us(entry.time) for entry in entries]
    zero_us = min(begun, default=0)
    of_workers = (
        _slice(
            *(span.activity.label, (hosts[span.host], span.worker), span.begin_us, span.end_us),
            {"step": span.step, "launch": span.generation},
        )
        for span in spans
    )
    events = itertools.chain(_names(spans, hosts), of_workers, _of_job(entries))
    file.write('{"displayTimeUnit": "ms", "traceEvents": [')
    for number, event in enumerate(events):
        if "ts" in event:
            event["ts"] -= zero_us
        file.write((",\n" if number else "\n") + json.dumps(event))
    file.write("\n]}\n")
    return Counter(span.activity.label for span in spans)


def _slice(name: str, at: tuple[int, int], begin_us: int, end_us: int, args: _Json) -> _Json:
    place = {"pid": at[0], "tid": at[1], "ts": begin_us, "dur": end_us - begin_us}
    return {"ph": "X", "name": name, "cat": "holdfast", **place, "args": args}


def _names(spans: Iterable[WorkerSpan], hosts: dict[str, int]) -> Iterator[_Json]:
    """Yield the names of tracks, and their order."""
    names = {("process", n, 0): f"host {host}" if host else "workers" for host, n in hosts.items()}
    names["process", _JOB, 0] = "job"
    names |= {("thread", _JOB, n): name for n, name in enumerate(_TRACKS)}
    names |= {("thread", hosts[s.host], s.worker): f"worker {s.worker}" for s in spans}
    for (kind, pid, tid), name in names.items():
        yield {"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _of_job(entries: Sequence[Entry[Any]]) -> Iterator[_Json]:
    """Yield what the journal tells of launches, recoveries and saves, and what people are told."""
    for place, entry in enumerate(entries):
        event, end_us = entry.event, _us(entry.time)
        match event:
            case LaunchBegan():
                later = entries[place:]
                ends = (one for one in later[1:] if isinstance(one.event, (LaunchBegan, JobEnded)))
                until_us = _us(next(ends, later[-1]).time)
                name = f"launch of {len(event.workers)} workers"
                args = {"generation": event.generation}
                yield _slice(name, _LAUNCHES, end_us, until_us, args)
            case Recovery(next_step_ms=float(length_ms)):
                begin_us = end_us - round(1000 * length_ms)
                yield _slice("recovery", _RECOVERIES, begin_us, end_us, fields_of(event))
            case Checkpoint() | CheckpointFailed():
                begin_us = end_us - round(_US * (event.seconds or 0.0))
                name = "save" if isinstance(event, Checkpoint) else "failed save"
                yield _slice(name, _SAVES, begin_us, end_us, fields_of(event))
        if entry.sentence:
            at = {"pid": _TOLD[0], "tid": _TOLD[1], "ts": end_us, "s": "g"}
            yield {"ph": "i", "name": entry.sentence, "cat": "holdfast", **at}


def _us(seconds: float) -> int:
    return round(_US * seconds)
