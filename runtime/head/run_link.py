"""The head's way to the run directory: the process that writes saves writes the journal as well.

The head touches no disk, so none can hold it up.  It stamps the records of all processes of the
job: so their moments compare, from all hosts.  Records wait here until the writer
has counted them.  While there is no writer, or its disk hangs, the newest 10,000 wait; of older
ones the journal tells the number.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, Protocol

from holdfast.runtime.head.job import Job
from holdfast.runtime.run.journal import Record, line_of, stamped
from holdfast.runtime.system.channel import Channel, Message
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.witnessed_time import Bound

_MOST_WAITING = 10_000
_MOST_AHEAD = {"trace": 64, "log": 8 << 20, "look": 1, "check": 1}
"""How much of each kind a disk may be behind: pieces, or letters of a log; the rest is lost."""
_ENDS_WITHIN_S = 5.0
SOURCE = "head"
_NOT_TRACED = frozenset({"kind", "now", "ahead_s"})


class RunOwner(Protocol):
    """Hears of the run directory and its records."""

    def on_record(self, record: Record) -> None:
        """Take note of a record of any process, in the order of the journal."""

    def on_run_warning(self, text: str) -> None:
        """Show a sentence about the run directory to the user."""

    def on_directory_lost(self, exit_code: int, reason: str) -> None:
        """End the job: its run directory is gone, or another job's."""


class RunLink:
    """Sends records and questions to the writer, and passes its answers on."""

    def __init__(self, reactor: Reactor, job: Job, lease: int, said: tuple[str, ...] = ()) -> None:
        """Take the first lines of the log as well, which were ``said`` before there was a head."""
        self._reactor = reactor
        self._said = said
        self._owner: RunOwner | None = None
        self._common: Record = {"run_id": job.config.record.run_id}
        self._opening: Message = {
            "kind": "open",
            "run_dir": str(job.config.run_dir),
            "record": job.config.record.encode().decode(),
        }
        metrics_file = job.config.options.metrics_file
        if metrics_file is not None:
            self._opening["metrics_file"] = str(metrics_file)
        self._lease = lease
        self._channel: Channel | None = None
        self._has_answered = False
        self._waiting: deque[str] = deque()
        """The newest lines; a writer that is connected was sent all of them."""
        self._first = job.lost_lines
        """The number of the first of them, of all lines so far."""
        self._counted = 0
        """How many lines were written, or told as lost."""
        self._ahead: Counter[str] = Counter()
        """How much of each kind the present writer was sent, and has not taken."""
        self._unlogged: Counter[tuple[int | None, str]] = Counter()
        """The lines that were lost on the way, by worker and host, and are not told of yet."""

    @property
    def has_answered(self) -> bool:
        """Whether the present writer has written something."""
        return self._channel is not None and self._has_answered

    @property
    def is_connected(self) -> bool:
        """Whether a writer is there."""
        return self._channel is not None

    def serve(self, owner: RunOwner) -> None:
        """Tell ``owner`` what comes."""
        self._owner = owner

    def connect(self, channel: Channel) -> None:
        """Talk to a new writer, and send it what the last one has not counted."""
        self._leave()
        self._has_answered = False
        self._channel = channel
        self._reactor.watch_channel(channel, self._on_message, self._leave)
        channel.post(self._opening, (self._lease,))
        said, self._said = self._said, ()
        if said:
            self.log(None, "", "".join(f"holdfast: {text}\n" for text in said))
        lost = max(0, self._first - self._counted)
        self._counted += lost
        self._send(list(self._waiting), lost, is_again=True)

    def record(self, event: str, /, **fields: object) -> None:
        """Write an event of the head itself into the journal."""
        self._take([stamped(event, fields, 0.0, self._common | {"source": SOURCE})])

    def take(self, message: Message) -> None:
        """Write the records of another process into the journal, with the head's own moments."""
        common = self._common | {"source": message["source"]}
        self._take(
            stamped(event, fields, age_s, common) for event, fields, age_s in message["records"]
        )

    def trace(self, event: Message) -> None:
        """Write a piece of the trace, which may be lost; its clock becomes that of the journal."""
        if not self._has_room("trace"):
            return
        fields = {name: value for name, value in event.items() if name not in _NOT_TRACED}
        offset_s = event["ahead_s"] + time.time() - time.monotonic()
        self._send_on("trace", 1, line=line_of({**fields, "offset_s": offset_s}))

    def look(self, seen: Message) -> None:
        """Show what is seen of the workers, unless the writer is behind."""
        if self._has_room("look"):
            moments = {"now": time.monotonic(), "time": time.time()}
            self._send_on("look", 1, **moments, **seen)

    def log(self, worker: int | None, host: str, lines: str, lost: int = 0) -> None:
        """Write lines of a worker, or of holdfast itself, after which so many are missing."""
        key = worker, host
        if not self._has_room("log"):
            self._unlogged[key] += lines.count("\n") + lost
            return
        before = self._unlogged.pop(key, 0)
        for text, missing in [("", before)] * bool(before) + [(lines, lost)]:
            told = {"worker": worker, "host": host, "lines": text, "lost": missing}
            self._send_on("log", len(text), **told)

    def check(self) -> None:
        """Have the writer find out whether the run directory is still the job's own."""
        if self._has_room("check"):
            self._send_on("check", 1)

    def close(self, *, is_over: bool) -> None:
        """Wait until all is written, but not for long; then let go of the writer.

        ``is_over`` is whether the lease shall say that the job has ended.
        """
        channel, bound = self._channel, Bound(_ENDS_WITHIN_S)
        if channel is None:
            return
        if is_over:
            channel.post({"kind": "over"})
        for messages in channel.serve(bound):
            for message in messages:
                self._on_message(message)
            behind = self._waiting or self._ahead["trace"] or self._ahead["log"]
            if not (behind or channel.wants_write):
                break
        self._leave()

    def _has_room(self, kind: str) -> bool:
        return self._channel is not None and self._ahead[kind] < _MOST_AHEAD[kind]

    def _send_on(self, kind: str, size: int, **fields: Any) -> None:
        """Send what may be lost: it is sent once, and its ``size`` counts until it is taken."""
        if self._channel is not None:
            self._channel.post({"kind": kind, **fields})
            self._ahead[kind] += size

    def _take(self, records: Iterable[Record]) -> None:
        lines = []
        for record in records:
            lines.append(line_of(record))
            if self._owner is not None:
                self._owner.on_record(record)
        self._write(lines)

    def _write(self, lines: list[str]) -> None:
        self._waiting.extend(lines)
        self._send(lines)
        self._forget_before(self._first + len(self._waiting) - _MOST_WAITING)

    def _send(self, lines: list[str], lost: int = 0, *, is_again: bool = False) -> None:
        if self._channel is not None and (lines or lost):
            told = {"lines": lines, "lost": lost, "is_again": is_again}
            self._channel.post({"kind": "lines", **told})

    def _on_message(self, message: Message) -> None:
        owner = self._owner
        match message["kind"]:
            case "written":
                self._has_answered = True
                self._counted += message["count"]
                self._forget_before(self._counted)
            case "taken":
                self._ahead[message["what"]] -= message["size"]
            case "warning" if owner is not None:
                owner.on_run_warning(message["text"])
            case "lost" if owner is not None:
                owner.on_directory_lost(message["exit_code"], message["reason"])

    def _forget_before(self, number: int) -> None:
        """Forget the lines before that with a number."""
        while self._waiting and self._first < number:
            self._waiting.popleft()
            self._first += 1

    def _leave(self) -> None:
        if self._channel is not None:
            self._reactor.forget(self._channel)
            self._channel.close()
            self._channel = None
        self._ahead.clear()
