"""The status of a worker, which it shares with its agent, and the thread that keeps it beating.

A worker proves that it lives by counting: its ``Pulse`` thread raises
``counter`` at a fixed interval.  The thread needs the interpreter's lock.  So the counter
stands still in a stopped process, and in one whose C code never gives the lock back.  A
process that computes keeps counting.  The agent only ever compares two readings: no clock
is shared.

The status lies in a memfd: it has no name and needs no clean-up.  It is readable after the
death of its worker, and then tells the victim's last step and phase.  It consists of aligned
64-bit words with exactly one writer each, so no lock is needed.  The agent counts the
requests of a kind, the worker those that it has answered.  One is pending while these differ.

`WorkerStatus` is the table of these words: place, type, writer and meaning.  Since each word has
one writer, a *mirror* on another host needs no protocol of its own.  The words of the worker are
copied there, and those of the agent back (`StatusChanges`).

Behind these words lies what the agent wants to know of a worker that fails: the samples of
the microbatch in hand, and an area for the stacks of its threads.  Both stay on the worker's
host.  Between the two lies the worker's word on its progress, for people.  It may be rewritten
while it is read, so its version is odd meanwhile.  What it spends its time on follows (`activity`).

What goes another way, and is no event, are the worker's own reports: how far its script has come.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from typing import Any, Generic, TypeVar, overload

from holdfast.recovery.event import WorkInHand
from holdfast.recovery.placement import WHOLE_SAVE, SavePart
from holdfast.recovery.world import WorkerId
from holdfast.runtime.system.activity import KINDS, Activity, ActivityTimes
from holdfast.runtime.system.own_process import sealed_memory
from holdfast.runtime.system.witnessed_time import witnessed_s

_Value = TypeVar("_Value", bound=int)

_IDS_AT, _PROGRESS_AT, _SPENT_AT, _WORDS_END = 32 * 8, 16384, 20480, 24576
MOST_IDS = (_PROGRESS_AT - _IDS_AT) // 8
"""As many samples of a microbatch are named."""

MOST_PROGRESS_BYTES = _SPENT_AT - _PROGRESS_AT

STACKS_AT = _WORDS_END
_SIZE_BYTES = STACKS_AT + (256 << 10)
"""What nobody writes takes no memory."""

_PROGRESS, _PROGRESS_CODEC = "progress", "latin-1"
"""Any bytes are text in this encoding, and those of a worker are short in JSON."""

_SPENT, _SUMS_AT = "spent", _SPENT_AT // 8

_STEADY = frozenset({"counter", "step", "commits", "turn", _SPENT})
"""What each step of a training changes."""


class Phase(IntEnum):
    """The work that a worker is doing, as its agent sees it."""

    STARTING = 0
    JOINING = 1
    """Inside ``MPI_Init``, which holds the interpreter's lock."""
    RESTORING = 2
    COMPILING = 3
    TRAINING = 4
    SAVING = 5
    REPAIRING = 6
    LEAVING = 7
    CONCLUDING = 8
    """In the script again, after training: it may write for long."""
    FAILED = 9
    """In the script again, after an error has ended its training."""

    @property
    def label(self) -> str:
        """The phase's name in messages and in the journal."""
        return self.name.lower()


class RequestFlag(IntFlag):
    """The requests that an agent may make of a worker."""

    NONE = 0
    SAVE = 1
    STOP = 2


@dataclass(frozen=True, slots=True)
class HaltOrder:
    """What a halted worker does: its part of the save ``attempt``, or it leaves if that is 0."""

    attempt: int = 0
    part: SavePart = WHOLE_SAVE


class Writer(Enum):
    """Who writes a word."""

    WORKER = "worker"
    AGENT = "agent"


class _Word(Generic[_Value]):
    """One word of a status; ``is_local``: only on the worker's host, not in a mirror."""

    def __init__(
        self,
        place: int,
        kind: Callable[[int], _Value],
        writer: Writer,
        *,
        is_local: bool = False,
    ) -> None:
        self.place = place
        self.writer = writer
        self.is_local = is_local
        self._kind = kind
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name.strip("_")

    @overload
    def __get__(self, status: None, owner: type) -> _Word[_Value]: ...

    @overload
    def __get__(self, status: WorkerStatus, owner: type) -> _Value: ...

    def __get__(self, status: WorkerStatus | None, owner: type) -> _Value | _Word[_Value]:
        return self if status is None else self._kind(status.words[self.place])

    def __set__(self, status: WorkerStatus, value: _Value) -> None:
        status.words[self.place] = value
        if self.writer is Writer.AGENT:
            status.on_wish()


_WORKER, _AGENT = Writer.WORKER, Writer.AGENT


class WorkerStatus:
    """One worker's status: the worker writes what it is doing, the agent what it wants of it.

    It owns its memory, and the descriptor that a worker inherits from the agent.  Words are written
    in the order of their places where that matters.
    """

    counter = _Word(0, int, _WORKER)  # number of beats so far
    phase = _Word(1, tuple(Phase).__getitem__, _WORKER)  # the work that the worker is doing
    step = _Word(2, int, _WORKER)  # number of updates that are committed
    commits = _Word(3, int, _WORKER)  # number of transactions that it has committed itself
    generation = _Word(4, int, _WORKER)  # generation of the worker's world
    _turn = _Word(5, int, _WORKER)  # twice the pieces of work begun, and 1 if it waits for peers
    _saves_answered = _Word(6, int, _WORKER)  # how many requests of a save it has served
    _stops_answered = _Word(7, int, _WORKER)  # how many requests of a stop it has served
    _progress_version = _Word(8, int, _WORKER, is_local=True)  # odd while progress is rewritten
    _progress_bytes = _Word(9, int, _WORKER, is_local=True)  # length of its progress
    _update = _Word(10, int, _WORKER, is_local=True)  # the update of the work in hand
    _microbatch = _Word(11, int, _WORKER, is_local=True)  # the microbatch in hand
    _is_validation = _Word(12, bool, _WORKER, is_local=True)  # whether it is of a validation
    _samples = _Word(13, int, _WORKER, is_local=True)  # its number of samples; 0 between two
    _saves_asked = _Word(16, int, _AGENT)  # how often a save was requested
    _stops_asked = _Word(17, int, _AGENT)  # how often a stop was requested
    durable_save = _Word(18, int, _AGENT)  # the last attempt at a checkpoint that is durable
    failed_save = _Word(19, int, _AGENT)  # the last attempt whose snapshot could not be written
    is_halt_asked = _Word(20, bool, _AGENT)  # whether it is to change no state, and to say its own
    _halt_attempt = _Word(21, int, _AGENT)  # the save of a halted worker; 0: it leaves
    _halt_part = _Word(22, int, _AGENT)  # its part of that save
    _halt_parts = _Word(23, int, _AGENT)  # the number of parts of its host
    _halt_host = _Word(24, int, _AGENT)  # the number of its host among those that save
    _halt_hosts = _Word(25, int, _AGENT)  # the number of these hosts
    halt_orders = _Word(26, int, _AGENT)  # how many orders a halted worker has had
    lease_ms = _Word(27, int, _AGENT, is_local=True)  # end of its host's lease; 0: it needs none

    def __init__(self, fd: int, on_wish: Callable[[], None] = lambda: None) -> None:
        self.fd = fd
        self.on_wish = on_wish
        self._map = mmap.mmap(fd, _WORDS_END)
        self.words = memoryview(self._map).cast("Q")
        times = ActivityTimes(
            self.words,
            sums_at=_SUMS_AT,
            phase_at=WorkerStatus.phase.place,
            compiling=Phase.COMPILING,
        )
        self.enter: Callable[[Activity], None] = times.enter
        """Notes what the thread that trains does from now on; no other thread calls (worker)."""

    @staticmethod
    def create() -> WorkerStatus:
        """Return a fresh status, all zero, whose size is fixed."""
        return WorkerStatus(sealed_memory("holdfast-status", _SIZE_BYTES))

    @staticmethod
    def mirror(on_wish: Callable[[], None] = lambda: None) -> WorkerStatus:
        """Return a fresh one for a worker of another host; no other process can see it.

        ``on_wish`` hears of each change of a word of the agent.
        """
        return WorkerStatus(-1, on_wish)

    def beat(self) -> None:
        """Count one beat."""
        self.counter += 1

    def commit(self, step: int) -> None:
        """Note a commit, after which ``step`` updates are committed (worker only)."""
        self.step = step
        self.commits += 1

    @property
    def turn(self) -> tuple[int, bool]:
        """Number of pieces of work begun, and whether this one ends only with the peers' help."""
        word = self._turn
        return word >> 1, bool(word & 1)

    def begin_turn(self, *, waits_for_peers: bool) -> None:
        """Note that the worker begins another piece of work (worker only).

        Without the lease of its host it ends here: its peers may have gone on without it.
        """
        words = self.words  # several times a step
        if words[_LEASE_AT]:
            self.end_without_lease()
        words[_TURN_AT] = ((words[_TURN_AT] >> 1) + 1) << 1 | waits_for_peers

    @contextlib.contextmanager
    def needing_no_peer(self) -> Iterator[None]:
        """Note work that no peer has to help with, in a piece that may wait (worker only)."""
        _, waits_for_peers = self.turn
        self.begin_turn(waits_for_peers=False)
        yield
        self.begin_turn(waits_for_peers=waits_for_peers)

    @property
    def work(self) -> WorkInHand | None:
        """The microbatch in hand; None between microbatches, and in a mirror."""
        count = self._samples
        if not count:
            return None
        first = _IDS_AT // 8
        ids = tuple(self.words[first : first + min(count, MOST_IDS)])
        return WorkInHand(self._update, self._microbatch, count, ids, self._is_validation)

    def begin_work(self, step: int, microbatch: int, ids: bytes, *, is_validation: bool) -> None:
        """Note the microbatch that the worker begins; ``ids`` are int64 (worker only).

        The count is written last, so a reader sees all of it or nothing.  It is a turn of its
        own: a spare waits for a whole validation pass, and has not shown how long that takes.
        """
        self.begin_turn(waits_for_peers=False)
        self._samples = 0
        self._update = step
        self._microbatch = microbatch
        self._is_validation = is_validation
        part = ids[: MOST_IDS * 8]
        self._map[_IDS_AT : _IDS_AT + len(part)] = part
        self._samples = len(ids) // 8

    def end_work(self) -> None:
        """Note that the worker has computed what it had in hand (worker only)."""
        self._samples = 0

    @property
    def spent_ns(self) -> tuple[int, ...]:
        """For how long the worker was in each activity so far, without the one in hand."""
        return tuple(self.words[_SUMS_AT : _SUMS_AT + KINDS])

    @property
    def progress(self) -> bytes:
        """What the worker has told of its progress; empty if it is being rewritten, or at first."""
        version, size = self._progress_version, self._progress_bytes
        content = self._map[_PROGRESS_AT : _PROGRESS_AT + size]
        is_whole = version % 2 == 0 and version == self._progress_version
        return content if is_whole else b""

    def tell_progress(self, content: bytes) -> None:
        """Tell how far training has come; ``MOST_PROGRESS_BYTES`` at most (worker only).

        Raises:
            ValueError: the content is longer.
        """
        if len(content) > MOST_PROGRESS_BYTES:
            raise ValueError(f"{len(content)} bytes of progress; {MOST_PROGRESS_BYTES} fit")
        self._progress_version += 1
        self._progress_bytes = len(content)
        self._map[_PROGRESS_AT : _PROGRESS_AT + len(content)] = content
        self._progress_version += 1

    @property
    def requests(self) -> RequestFlag:
        """The requests that the worker has not answered yet."""
        wants_save = self._saves_asked != self._saves_answered
        wants_stop = self._stops_asked != self._stops_answered
        if not (wants_save or wants_stop):
            return RequestFlag.NONE
        return RequestFlag(wants_save * RequestFlag.SAVE | wants_stop * RequestFlag.STOP)

    def asked(self, what: RequestFlag) -> int:
        """Return how often ``what`` was requested so far."""
        return self._saves_asked if what == RequestFlag.SAVE else self._stops_asked

    def ask(self, what: RequestFlag) -> None:
        """Make a request of the worker (agent only)."""
        if what == RequestFlag.SAVE:
            self._saves_asked += 1
        else:
            self._stops_asked += 1

    def answer(self, what: RequestFlag, asked: int) -> None:
        """Take note that the first ``asked`` requests of ``what`` were served (worker only)."""
        if what == RequestFlag.SAVE:
            self._saves_answered = asked
        else:
            self._stops_answered = asked

    @property
    def halt_order(self) -> HaltOrder:
        """The last order to a halted worker; a later one replaces those before."""
        place = self._halt_host, self._halt_hosts, self._halt_part, self._halt_parts
        return HaltOrder(self._halt_attempt, SavePart(*place))

    def order_halted(self, order: HaltOrder) -> None:
        """Tell a halted worker what it does (agent only); it looks at the count, written last."""
        self._halt_attempt = order.attempt
        self._halt_host, self._halt_hosts = order.part.host, order.part.hosts
        self._halt_part, self._halt_parts = order.part.part, order.part.parts
        self.halt_orders += 1

    def is_answered(self, attempt: int) -> bool:
        """Return whether the snapshot of ``attempt``, or of a later one, was written or failed."""
        return max(self.durable_save, self.failed_save) >= attempt

    def answer_save(self, attempt: int, *, is_durable: bool) -> None:
        """Tell whether a snapshot is durable or has failed (agent only).

        A late answer changes nothing.
        """
        if is_durable:
            self.durable_save = max(self.durable_save, attempt)
        else:
            self.failed_save = max(self.failed_save, attempt)

    def take(self, changes: Mapping[str, Any], writer: Writer) -> None:
        """Write what ``StatusChanges`` has found in another status of this worker, in its order.

        Raises:
            KeyError: there is no such word of this writer.
        """
        words, mirrored = self.words, _MIRRORED[writer]
        for name, found in changes.items():
            if name == _SPENT:
                words[_SUMS_AT : _SUMS_AT + KINDS] = array.array("Q", found)
            elif name == _PROGRESS:
                self.tell_progress(found.encode(_PROGRESS_CODEC))
            else:
                words[mirrored[name].place] = found

    @property
    def has_lease(self) -> bool:
        """Whether the lease of its host has not run out; true where none is needed."""
        lease_ms = self.lease_ms
        return not lease_ms or 1000 * lease_clock_s() < lease_ms

    def end_without_lease(self) -> None:
        """SIGKILL this process if the lease of its host has run out (worker only)."""
        if not self.has_lease:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self) -> None:
        """Unmap the memory and close its descriptor; closing twice is harmless."""
        if self._map.closed:
            return
        self.words.release()
        self._map.close()
        if self.fd >= 0:
            os.close(self.fd)


_WORDS: tuple[_Word[Any], ...] = tuple(
    word for word in vars(WorkerStatus).values() if isinstance(word, _Word)
)
_MIRRORED: dict[Writer, dict[str, _Word[Any]]] = {
    writer: {word.name: word for word in _WORDS if word.writer is writer and not word.is_local}
    for writer in Writer
}
_TURN_AT, _LEASE_AT = WorkerStatus._turn.place, WorkerStatus.lease_ms.place


class StatusChanges:
    """What one writer changes in a status, for a copy of it that another process holds.

    The worker's words go from its own status to the mirror, those of the agent back.  A copy that
    ``take``s every look in order is equal.
    """

    def __init__(self, status: WorkerStatus, writer: Writer) -> None:
        self._status = status
        self._writer = writer
        self._told: dict[str, int | str | list[int]] = dict.fromkeys(_MIRRORED[writer], 0)
        self._told |= {_PROGRESS: "", _SPENT: [0] * KINDS}

    def look(self, *, with_steady: bool = True) -> dict[str, int | str | list[int]]:
        """Return the words that have changed since the last look; they fit into JSON.

        If only such have changed as each step changes, they wait for a look ``with_steady`` ones.
        """
        words = self._status.words
        seen: dict[str, int | str | list[int]] = {
            name: words[word.place] for name, word in _MIRRORED[self._writer].items()
        }
        if self._writer is Writer.WORKER:
            seen[_SPENT] = list(self._status.spent_ns)
            if progress := self._status.progress:
                seen[_PROGRESS] = progress.decode(_PROGRESS_CODEC)
        changed = {name: value for name, value in seen.items() if value != self._told[name]}
        if not with_steady and changed.keys() <= _STEADY:
            return {}
        self._told |= changed
        return changed


class Pulse:
    """The daemon thread that counts a worker's beats, and looks at the clock for its bounds.

    ``poll`` is called with each of them, and must not wait.
    """

    def __init__(
        self,
        status: WorkerStatus,
        interval_s: float,
        poll: Callable[[], object] = lambda: None,
    ) -> None:
        self._status = status
        self._interval_s = interval_s
        self._look = poll
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-pulse", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more, and wait until the thread has ended."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        self._status.beat()
        while not self._ended.wait(self._interval_s):
            self._status.end_without_lease()
            self._status.beat()
            self._look()
            witnessed_s()


def lease_clock_s() -> float:
    """Return the clock of leases: it goes on while a process, or the whole host, stands still."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def pulse_interval_s(heartbeat_timeout_s: float) -> float:
    """Return the seconds between beats: a tenth of the timeout, within 20 to 500 ms."""
    return min(max(heartbeat_timeout_s / 10, 0.02), 0.5)


@dataclass(frozen=True, slots=True)
class TrainingBegun:
    """The script begins its training of this number."""

    worker: WorkerId
    number: int


@dataclass(frozen=True, slots=True)
class TrainingFailed:
    """An error has ended a training, and the script may catch it."""

    worker: WorkerId
    error: str


@dataclass(frozen=True, slots=True)
class ScriptEnded:
    """The script has come to its end; the worker waits until those of all have."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerLeaving:
    """The worker ends its process by agreement."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class SurvivorsMet:
    """The worker asks whether these survivors are the world that goes on."""

    worker: WorkerId
    workers: tuple[WorkerId, ...]


@dataclass(frozen=True, slots=True)
class WorkerHalted:
    """What a halted worker holds."""

    worker: WorkerId
    version: int
    """That of the state, -1 if it holds none."""
    is_settled: bool
    saves: int
    """How many saves it has begun."""
    is_saved: bool
    step: int
    words: str
    """What happens to the rest when the run goes on, or why nothing is to be saved."""


@dataclass(frozen=True, slots=True)
class HaltedSaveEnded:
    """The part of a save that a halted worker was told to make is over."""

    worker: WorkerId
    attempt: int
    failure: str
    """Why it has failed, "" if it has not."""


OwnReport = (
    TrainingBegun
    | TrainingFailed
    | ScriptEnded
    | WorkerLeaving
    | SurvivorsMet
    | WorkerHalted
    | HaltedSaveEnded
)
