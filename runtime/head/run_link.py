"""The head's way to the run directory: the process that writes saves writes the journal as well.

The head touches no disk, so none can hold it up.  It stamps the records of all processes of the
job: so their moments compare, from all hosts.  Records wait here until the writer
has counted them.  While there is no writer, or its disk hangs, the newest 10,000 wait; of older
ones the journal tells the number.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from holdfast.recovery.event import Event, RunDirectoryLost
from holdfast.recovery.world import WorkerId
from holdfast.runtime.head.job import Job
from holdfast.runtime.run.entries import Entry, entries_of
from holdfast.runtime.run.events import Warned
from holdfast.runtime.run.journal import RecordedEvent, Records, line_of
from holdfast.runtime.run.progress import LaunchReport
from holdfast.runtime.run.worker_logs import LogText
from holdfast.runtime.saving.run_files import (
    CheckDirectory,
    JobOver,
    JobSeen,
    JournalLines,
    OfRunFiles,
    OpenRun,
    ToRunFiles,
    Written,
)
from holdfast.runtime.system.channel import Channel, Message, MessageKinds, to_message
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.witnessed_time import Bound

_MOST_WAITING = 10_000
_MOST_AHEAD = {"LogText": 8 << 20, "JobSeen": 1, "CheckDirectory": 1}
"""How much of each kind a disk may be behind: messages, or letters of a log; the rest is lost."""
_MESSAGES: MessageKinds[OfRunFiles] = MessageKinds(OfRunFiles)
_ENDS_WITHIN_S = 5.0
SOURCE = "head"


class RunLink:
    """Sends records and questions to the writer, and passes its answers on."""

    def __init__(self, reactor: Reactor, job: Job, lease: int, said: tuple[str, ...] = ()) -> None:
        """Take the first lines of the log as well, which were ``said`` before there was a head."""
        self._reactor = reactor
        self._said = said
        self._saw: Callable[[Entry[Any]], None] = lambda entry: None
        self._tell: Callable[[Warned | RunDirectoryLost], None] = lambda told: None
        self._run_id = job.config.record.run_id
        config = job.config
        self._opening = OpenRun(config.options.run_dir, config.record, config.options.metrics_file)
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
        self._unlogged: Counter[tuple[WorkerId | None, str]] = Counter()
        """The lines that were lost on the way, by worker and host, and are not told of yet."""

    @property
    def has_answered(self) -> bool:
        """Whether the present writer has written something."""
        return self._channel is not None and self._has_answered

    @property
    def is_connected(self) -> bool:
        """Whether a writer is there."""
        return self._channel is not None

    def serve(
        self, saw: Callable[[Entry[Any]], None], tell: Callable[[Warned | RunDirectoryLost], None]
    ) -> None:
        """Let ``saw`` have the records of all processes, and ``tell`` what the writer says."""
        self._saw, self._tell = saw, tell

    def connect(self, channel: Channel) -> None:
        """Talk to a new writer, and send it what the last one has not counted."""
        self._leave()
        self._has_answered = False
        self._channel = channel
        self._reactor.watch_channel(channel, self._on_message, self._leave)
        channel.post(to_message(self._opening), (self._lease,))
        said, self._said = self._said, ()
        if said:
            self.log(LogText(None, "", "".join(f"holdfast: {text}\n" for text in said)))
        lost = max(0, self._first - self._counted)
        self._counted += lost
        self._send(JournalLines(tuple(self._waiting), lost, is_again=True))

    def record(self, event: Event) -> None:
        """Write an event of the head itself into the journal."""
        self.take(Records((RecordedEvent.of(event),), SOURCE))

    def take(self, records: Records) -> None:
        """Write the records of a process into the journal, with the head's own moments."""
        found = [event.record(self._run_id, records.source) for event in records.events]
        for entry in entries_of(found):
            self._saw(entry)
        lines = tuple(map(line_of, found))
        self._waiting.extend(lines)
        self._send(JournalLines(lines))
        self._forget_before(self._first + len(self._waiting) - _MOST_WAITING)

    def look(self, seen: LaunchReport) -> None:
        """Show what is seen of the workers, unless the writer is behind."""
        self._offer(JobSeen(time.time(), seen))

    def log(self, text: LogText) -> None:
        """Write lines of a worker, or of holdfast itself."""
        key = text.worker, text.host
        if (before := self._unlogged[key]) and self._offer(LogText(*key, "", before), size=0):
            del self._unlogged[key]
        if not self._offer(text, size=len(text.lines)):
            self._unlogged[key] += text.lines.count("\n") + text.lost

    def check(self) -> None:
        """Have the writer find out whether the run directory is still the job's own."""
        self._offer(CheckDirectory())

    def close(self, *, is_over: bool) -> None:
        """Wait until all is written, but not for long; then let go of the writer.

        ``is_over`` is whether the lease shall say that the job has ended.
        """
        channel, bound = self._channel, Bound(_ENDS_WITHIN_S)
        if channel is None:
            return
        if is_over:
            channel.post(to_message(JobOver()))
        for lines in channel.serve(bound):
            for line in lines:
                self._on_message(line)
            behind = self._waiting or self._ahead["LogText"]
            if not (behind or channel.wants_write):
                break
        self._leave()

    def _offer(self, message: ToRunFiles, size: int = 1) -> bool:
        """Send what may be lost, unless the writer is behind; its size counts until it is taken."""
        kind = type(message).__name__
        if self._channel is None or self._ahead[kind] >= _MOST_AHEAD[kind]:
            return False
        self._channel.post(to_message(message))
        self._ahead[kind] += size
        return True

    def _send(self, message: JournalLines) -> None:
        if self._channel is not None and (message.lines or message.lost):
            self._channel.post(to_message(message))

    def _on_message(self, line: Message) -> None:
        match message := _MESSAGES.decode(line):
            case Written("JournalLines", count):
                self._has_answered = True
                self._counted += count
                self._forget_before(self._counted)
            case Written(what, size):
                self._ahead[what] -= size
            case Warned() | RunDirectoryLost():
                self._tell(message)

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
