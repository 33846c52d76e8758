"""The page that a worker and its agent share, and the thread that keeps it beating.

A worker proves that it lives by counting: its ``Pulse`` thread raises
``counter`` at a fixed interval.  The thread needs the interpreter's lock.  So the counter
stands still in a stopped process, and in one whose C code never gives the lock back.  A
process that computes keeps counting.  The agent only ever compares two readings: no clock
is shared.

The page lies in a memfd: it has no name and needs no clean-up.  It is readable after the
death of its worker, and then tells the victim's last step and phase.  Every field is one
aligned 64-bit word with exactly one writer, so no lock is needed.  The agent counts the
requests of a kind, the worker those that it has answered.  One is pending while these differ.

Behind these words lies what the agent wants to know of a worker that fails: the samples of
the microbatch in hand, and an area for the stacks of its threads.  Between the two
lies the worker's word on its progress, for people.  It may be rewritten while it is read, so
its version is odd meanwhile.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from holdfast.runtime.system.own_process import sealed_memory
from holdfast.runtime.system.witnessed_time import witnessed_s

_COUNTER, _PHASE, _STEP, _GENERATION, _DURABLE, _FAILED = range(6)
_TURN, _COMMITS, _WORD_VERSION, _WORD_BYTES = range(8, 12)
_SAVES_ASKED, _SAVES_ANSWERED, _STOPS_ASKED, _STOPS_ANSWERED = range(12, 16)
_UPDATE, _MICROBATCH, _COUNT, _IS_VALIDATION = range(16, 20)
_HALTS_ASKED, _HALT_ATTEMPT, _HALT_PART, _HALT_PARTS, _HALT_ORDERS = range(20, 25)
_IDS_AT, _PROGRESS_AT, _WORDS_END = 32 * 8, 16384, 20480
MOST_IDS = (_PROGRESS_AT - _IDS_AT) // 8
"""As many samples of a microbatch are named."""

MOST_PROGRESS_BYTES = _WORDS_END - _PROGRESS_AT

STACKS_AT = _WORDS_END
_SIZE_BYTES = STACKS_AT + (256 << 10)
"""What nobody writes takes no memory."""


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


_ASKED = {RequestFlag.SAVE: _SAVES_ASKED, RequestFlag.STOP: _STOPS_ASKED}
_ANSWERED = {RequestFlag.SAVE: _SAVES_ANSWERED, RequestFlag.STOP: _STOPS_ANSWERED}


@dataclass(frozen=True, slots=True)
class WorkInHand:
    """The microbatch that a worker is computing: of which update (from 1), and its samples."""

    step: int
    microbatch: int
    count: int
    ids: tuple[int, ...]
    """The first ``MOST_IDS`` samples of the ``count``."""
    is_validation: bool


@dataclass(frozen=True, slots=True)
class HaltOrder:
    """What a halted worker does: its part of the save ``attempt``, or it leaves if that is 0."""

    attempt: int = 0
    part: int = 0
    parts: int = 0


class HeartbeatPage:
    """One worker's page: the worker writes what it is doing, the agent reads it.

    It owns its descriptor, which a worker inherits from the agent.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, _WORDS_END)
        self._words = memoryview(self._map).cast("Q")

    @staticmethod
    def create() -> HeartbeatPage:
        """Return a fresh page, all zero, whose size is fixed."""
        return HeartbeatPage(sealed_memory("holdfast-heartbeat", _SIZE_BYTES))

    @property
    def counter(self) -> int:
        """Number of beats so far."""
        return self._words[_COUNTER]

    def beat(self) -> None:
        """Count one beat."""
        self._words[_COUNTER] += 1

    @property
    def phase(self) -> Phase:
        """The work that the worker is doing."""
        return Phase(self._words[_PHASE])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        self._words[_PHASE] = phase

    @property
    def step(self) -> int:
        """Number of updates that the worker has committed."""
        return self._words[_STEP]

    @property
    def commits(self) -> int:
        """Number of transactions that the worker has committed since it began."""
        return self._words[_COMMITS]

    def resume(self, step: int) -> None:
        """Note that the worker goes on from ``step``, which it has not committed itself."""
        self._words[_STEP] = step

    def commit(self, step: int) -> None:
        """Note a commit, after which ``step`` updates are committed (worker only)."""
        self._words[_STEP] = step
        self._words[_COMMITS] += 1

    @property
    def generation(self) -> int:
        """Generation of the worker's world."""
        return self._words[_GENERATION]

    @generation.setter
    def generation(self, generation: int) -> None:
        self._words[_GENERATION] = generation

    @property
    def turn(self) -> tuple[int, bool]:
        """Number of pieces of work begun, and whether this one ends only with the peers' help."""
        word = self._words[_TURN]
        return word >> 1, bool(word & 1)

    def begin_turn(self, *, waits_for_peers: bool) -> None:
        """Note that the worker begins another piece of work (worker only)."""
        self._words[_TURN] = ((self._words[_TURN] >> 1) + 1) << 1 | waits_for_peers

    @contextlib.contextmanager
    def needing_no_peer(self) -> Iterator[None]:
        """Note work that no peer has to help with, in a piece that may wait (worker only)."""
        _, waits_for_peers = self.turn
        self.begin_turn(waits_for_peers=False)
        yield
        self.begin_turn(waits_for_peers=waits_for_peers)

    @property
    def work(self) -> WorkInHand | None:
        """The microbatch in hand, None between microbatches."""
        count = self._words[_COUNT]
        if not count:
            return None
        first = _IDS_AT // 8
        ids = tuple(self._words[first : first + min(count, MOST_IDS)])
        step, microbatch, _, is_validation = self._words[_UPDATE : _IS_VALIDATION + 1]
        return WorkInHand(step, microbatch, count, ids, bool(is_validation))

    def begin_work(self, step: int, microbatch: int, ids: bytes, *, is_validation: bool) -> None:
        """Note the microbatch that the worker begins; ``ids`` are int64 (worker only).

        The count is written last, so a reader sees all of it or nothing.  It is a turn of its
        own: a spare waits for a whole validation pass, and has not shown how long that takes.
        """
        self.begin_turn(waits_for_peers=False)
        self._words[_COUNT] = 0
        self._words[_UPDATE] = step
        self._words[_MICROBATCH] = microbatch
        self._words[_IS_VALIDATION] = is_validation
        part = ids[: MOST_IDS * 8]
        self._map[_IDS_AT : _IDS_AT + len(part)] = part
        self._words[_COUNT] = len(ids) // 8

    def end_work(self) -> None:
        """Note that the worker has computed what it had in hand (worker only)."""
        self._words[_COUNT] = 0

    @property
    def progress(self) -> bytes:
        """What the worker has told of its progress; empty if it is being rewritten, or at first."""
        version, size = self._words[_WORD_VERSION], self._words[_WORD_BYTES]
        content = self._map[_PROGRESS_AT : _PROGRESS_AT + size]
        is_whole = version % 2 == 0 and version == self._words[_WORD_VERSION]
        return content if is_whole else b""

    def tell_progress(self, content: bytes) -> None:
        """Tell how far training has come; ``MOST_PROGRESS_BYTES`` at most (worker only).

        Raises:
            ValueError: the content is longer.
        """
        if len(content) > MOST_PROGRESS_BYTES:
            raise ValueError(f"{len(content)} bytes of progress; {MOST_PROGRESS_BYTES} fit")
        self._words[_WORD_VERSION] += 1
        self._words[_WORD_BYTES] = len(content)
        self._map[_PROGRESS_AT : _PROGRESS_AT + len(content)] = content
        self._words[_WORD_VERSION] += 1

    @property
    def requests(self) -> RequestFlag:
        """The requests that the worker has not answered yet."""
        words = self._words
        wants_save = words[_SAVES_ASKED] != words[_SAVES_ANSWERED]
        wants_stop = words[_STOPS_ASKED] != words[_STOPS_ANSWERED]
        if not (wants_save or wants_stop):
            return RequestFlag.NONE
        return RequestFlag(wants_save * RequestFlag.SAVE | wants_stop * RequestFlag.STOP)

    def asked(self, what: RequestFlag) -> int:
        """Return how often ``what`` was requested so far."""
        return self._words[_ASKED[what]]

    def ask(self, what: RequestFlag) -> None:
        """Make a request of the worker (agent only)."""
        self._words[_ASKED[what]] += 1

    def answer(self, what: RequestFlag, asked: int) -> None:
        """Take note that the first ``asked`` requests of ``what`` were served (worker only)."""
        self._words[_ANSWERED[what]] = asked

    @property
    def is_halt_asked(self) -> bool:
        """Whether the worker is to change its state no more, and to say what it holds."""
        return bool(self._words[_HALTS_ASKED])

    def halt(self) -> None:
        """Ask the worker to change its state no more (agent only)."""
        self._words[_HALTS_ASKED] = 1

    @property
    def halt_orders(self) -> int:
        """How many orders a halted worker has had; a later one replaces those before."""
        return self._words[_HALT_ORDERS]

    @property
    def halt_order(self) -> HaltOrder:
        """The last order to a halted worker."""
        attempt, part, parts = self._words[_HALT_ATTEMPT : _HALT_PARTS + 1]
        return HaltOrder(attempt, part, parts)

    def order_halted(self, order: HaltOrder) -> None:
        """Tell a halted worker what it does (agent only); it looks at the count, written last."""
        self._words[_HALT_ATTEMPT] = order.attempt
        self._words[_HALT_PART] = order.part
        self._words[_HALT_PARTS] = order.parts
        self._words[_HALT_ORDERS] += 1

    @property
    def failed_save(self) -> int:
        """The last attempt at a checkpoint whose snapshot could not be written; 0 at first."""
        return self._words[_FAILED]

    def is_answered(self, attempt: int) -> bool:
        """Return whether the snapshot of ``attempt``, or of a later one, was written or failed."""
        return max(self._words[_DURABLE], self._words[_FAILED]) >= attempt

    def answer_save(self, attempt: int, *, is_durable: bool) -> None:
        """Tell whether a snapshot is durable or has failed (agent only)."""
        self._words[_DURABLE if is_durable else _FAILED] = attempt

    def close(self) -> None:
        """Unmap the page and close its descriptor; closing twice is harmless."""
        if self._map.closed:
            return
        self._words.release()
        self._map.close()
        os.close(self.fd)


class Pulse:
    """The daemon thread that counts a worker's beats, and looks at the clock for its bounds.

    ``poll`` is called with each of them, and must not wait.
    """

    def __init__(
        self,
        page: HeartbeatPage,
        interval_s: float,
        poll: Callable[[], object] = lambda: None,
    ) -> None:
        self._page = page
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
        self._page.beat()
        while not self._ended.wait(self._interval_s):
            self._page.beat()
            self._look()
            witnessed_s()


def pulse_interval_s(heartbeat_timeout_s: float) -> float:
    """Return the seconds between beats: a tenth of the timeout, within 20 to 500 ms."""
    return min(max(heartbeat_timeout_s / 10, 0.02), 0.5)
