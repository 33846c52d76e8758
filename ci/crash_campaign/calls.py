"""Every system call of every victim is killed at, and fails: nothing is lost, or lied about.

A call fails once, or the file system is gone from that call on.  Some pairs of faults follow.
Where others may take the directory away, they do so at each call.
"""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from job import scratch
from supervision import KILL, PASS, SAY, Call, Decide, Ended, run_victim, why_not
from tally import Enough, Tally, Wrong
from victim import Aftermath, Victim

from holdfast.checkpoint.errors import CheckpointError

PAIRS = 100
"""For each victim."""
_SHORT_CASES = 8
"""For each victim."""
_GONE = "+"
"""Ends the name of an errno with which every later call fails as well."""
_ANY = ("EIO", "ESTALE", "ESTALE+")
_NAMES = frozenset({"mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat"})
_NAMED = _NAMES | {"renameat2", "link", "linkat", "open", "openat", "newfstatat", "lstat", "stat"}
_SPACE = frozenset(
    {"mkdir", "mkdirat", "fallocate", "pwritev", "pwritev2", "pwrite64", "write", "fsync"}
    | {"renameat2", "link", "linkat"}
)
_WITHOUT = ("EOPNOTSUPP", "fallocate")
"""A file system may lack this call, and nothing else changes."""
_LACKING = frozenset({"fallocate", "fsync", "flock", "link", "linkat", "renameat2"})
_INTERRUPTED = frozenset(
    {"open", "openat", "close", "read", "write", "pread64", "preadv", "preadv2", "pwritev"}
    | {"pwritev2", "fallocate", "fsync", "flock", "fstat", "mkdir", "mkdirat"}
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of one call: ``KILL``, an errno's name, or an intrusion's."""

    call: Call
    kind: str

    def strikes(self, call: Call) -> bool:
        """Return whether this is the call."""
        return (call.name, call.number) == (self.call.name, self.call.number)

    @property
    def is_tolerated(self) -> bool:
        """Whether a save must go on as if nothing had been."""
        is_harmless = self.kind == "EINTR" or (self.kind, self.call.name) == _WITHOUT
        return is_harmless and "/checkpoints/" in self.call.path

    def __str__(self) -> str:
        return f"{self.kind} at {self.call}"


def run(seed: int, victim: Victim, *, is_short: bool, only: int | None) -> Tally:
    """Strike one victim; ``only`` replays the case of that number."""
    tally = Tally(f"calls of {victim.name}", f"--part calls --victim {victim.name}", why_not())
    if not tally.skipped:
        with Enough.caught, scratch() as root:
            _Campaign(root, seed, tally, victim).run_all(is_short=is_short, only=only)
    return tally


class _Campaign:
    """What a victim finds, as it was prepared, and as each case has it anew."""

    def __init__(self, root: Path, seed: int, tally: Tally, victim: Victim) -> None:
        self._pristine, self._folder = root / "pristine", root / "case"
        self._seed, self._tally, self._victim = seed, tally, victim
        self._pristine.mkdir()
        victim.prepare(self._pristine, seed)
        self._renew()
        self._undisturbed = self._act(lambda _: PASS)
        tally.note("calls", len(self._undisturbed.calls))

    def run_all(self, *, is_short: bool, only: int | None) -> None:
        """Run all cases, a sample of them, or one."""
        self._judge_undisturbed()
        if self._tally.complaints:
            return
        numbered = list(enumerate(self._cases()))
        if only is not None:
            numbered = numbered[only : only + 1]
        elif is_short:
            choose = random.Random(self._seed)
            numbered = sorted(choose.sample(numbered, _SHORT_CASES), key=lambda pair: pair[0])
        if Enough.is_wanted:  # a missing guard shows at changes, if anywhere
            numbered.sort(key=lambda pair: not pair[1][0].call.changes)
        for number, faults in numbered:
            self._run(number, faults)

    def _judge_undisturbed(self) -> None:
        """Complain of what is wrong though nothing has struck."""

        def complain(wrong: Wrong, text: str) -> None:
            said = self._undisturbed.said
            self._tally.complain(wrong, 0, f"undisturbed: {text}; it said {said}")

        if complaint := _unclean(self._undisturbed):
            complain(Wrong.OTHER, complaint)
        else:
            words = tuple(self._undisturbed.said)
            self._judge(Aftermath(self._folder, self._seed, words, complain))

    def _judge(self, after: Aftermath) -> None:
        try:
            self._victim.judge(after)
        except (OSError, CheckpointError) as error:
            after.complain(Wrong.OTHER, f"what is left cannot be judged: {error!r}")

    def _cases(self) -> Iterator[tuple[Fault, ...]]:
        """Yield each fault of each call, and seeded pairs of faults.

        Where others may come, they come as the second of a pair.
        """
        singles = [
            Fault(call, kind)
            for call in self._undisturbed.calls
            for kind in (*kinds_of(call), *self._intrusions_at(call))
        ]
        yield from ((fault,) for fault in singles)
        choose = random.Random(self._seed)
        others = [fault for fault in singles if fault.kind in self._victim.intrusions]
        survived = [fault for fault in singles if fault.kind != "KILL" and fault not in others]
        for _ in range(PAIRS):
            first, second = choose.choice(survived), choose.choice(others or singles)
            if first.call != second.call:
                yield first, second

    def _intrusions_at(self, call: Call) -> tuple[str, ...]:
        """Return who may come before a call; a close tells the victim nothing."""
        return () if call.name in ("close", SAY) else tuple(self._victim.intrusions)

    def _run(self, number: int, faults: tuple[Fault, ...]) -> None:
        """Run a case and complain of all that is wrong after it."""
        self._renew()
        strike = _Strike(self._victim, self._folder, self._seed, faults)
        ended = self._act(strike)
        what = ", then ".join(map(str, faults))
        self._tally.cases += 1
        self._tally.note("killed" if ended.code == -9 else "failed calls", strike.count)

        def complain(wrong: Wrong, text: str) -> None:
            self._tally.complain(wrong, number, f"{what}: {text}; it said {ended.said}")

        if complaint := self._ends_wrong(strike.struck, ended):
            complain(Wrong.OTHER, complaint)
        after = Aftermath(
            *(self._folder, self._seed, tuple(ended.said), complain),
            is_failed=any(fault.kind != "KILL" for fault in faults),
            intruder=strike.intruder,
        )
        self._judge(after)

    def _ends_wrong(self, faults: Sequence[Fault], ended: Ended) -> str:
        """Return what the victim itself has done wrong, "" if nothing."""
        complaint = _unclean(ended, may_be_killed=any(fault.kind == "KILL" for fault in faults))
        usual = _verbs(self._undisturbed)
        if complaint or not all(fault.is_tolerated for fault in faults) or _verbs(ended) == usual:
            return complaint
        return f"it has to go on as if undisturbed: {usual}"

    def _act(self, decide: Decide) -> Ended:
        victim, folder, seed = self._victim, self._folder, self._seed
        return run_victim(lambda say: victim.act(folder, seed, say), folder, decide)

    def _renew(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._pristine, self._folder, symlinks=True)


class _Strike:
    """Decides on each call of one victim."""

    def __init__(self, victim: Victim, folder: Path, seed: int, faults: Sequence[Fault]) -> None:
        self._victim, self._folder, self._seed = victim, folder, seed
        self._faults = list(faults)
        self._gone = PASS
        self.count = 0
        self.struck: list[Fault] = []
        """The faults with the calls that they met: threads may have changed places."""
        self.intruder: object = None

    def __call__(self, call: Call) -> int:
        found = next((fault for fault in self._faults if fault.strikes(call)), None)
        if found is None:
            self.count += self._gone != PASS and call.name != SAY
            return self._gone if call.name != SAY else PASS
        self._faults.remove(found)
        self.struck.append(Fault(call, found.kind))
        self.count += 1
        intrusion = self._victim.intrusions.get(found.kind)
        if intrusion is not None:
            self.intruder = intrusion(self._folder, self._seed)
            return PASS
        if found.kind == "KILL":
            return KILL
        number: int = getattr(errno, found.kind.removesuffix(_GONE))
        if found.kind.endswith(_GONE):
            self._gone = number
        return number


def kinds_of(call: Call) -> Iterator[str]:
    """Yield what happens to a call, in turn.

    One that changes nothing is not killed at: the next change finds the same files.  It
    has one of its errors only, and calls of the same name take turns with them.
    """
    if call.name == SAY:
        yield "KILL"
    elif call.changes:
        yield from ("KILL", *errors_of(call))
    else:
        found = tuple(errors_of(call))
        yield found[call.number % len(found)]


def errors_of(call: Call) -> Iterator[str]:
    """Yield the errors that a call may have."""
    yield from _ANY
    if call.name in _NAMED:
        yield "EACCES"
    if call.name in _SPACE or call.creates:
        yield "ENOSPC"
    if call.name in _INTERRUPTED:
        yield "EINTR"
    if call.name in ("open", "openat"):
        yield "EMFILE"
    if call.name in _LACKING:
        yield "EOPNOTSUPP"
    if call.name == "flock":
        yield "ENOLCK"


def _verbs(ended: Ended) -> list[str]:
    """Return what a victim has said, without the names that it has drawn."""
    return [word.split()[0] if word.startswith("began") else word for word in ended.said]


def _unclean(ended: Ended, *, may_be_killed: bool = False) -> str:
    """Return how a victim has not ended as one of ours must, "" if it has."""
    if ended.hangs:
        return "the victim hangs"
    if "Traceback" in ended.errors:
        return f"the victim shows a traceback: {ended.errors[-1500:]}"
    if ended.code != 0 and not (ended.code == -9 and may_be_killed):
        return f"the victim ended with {ended.code}: {ended.errors[-500:]}"
    return ""
