"""Every system call of a save and a prune is killed at, and fails: nothing is lost, or lied about.

The victim restores the newest step, saves the next one, acknowledges it once the commit
has returned, and prunes.  It saves once as `checkpoint.store.save` does, and once from
snapshots in memory.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from job import KEEP, RUN_ID, open_store, same, save_images, save_step, scratch, state_of
from syscalls import Call, Ended, Fault, record, run_victim, why_not
from tally import Tally, Wrong
from verdict import Verdict

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.names import removed_name, step_name
from holdfast.checkpoint.store.reader import restore_newest
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.own_steps import OwnSteps
from holdfast.checkpoint.upkeep.retention import prune

OLDEST, OLD, NEW = 10, 20, 30
HALF_REMOVED = 5
WAYS: dict[str, Callable[[CheckpointStore, int, int], None]] = {
    "save": save_step,
    "images": save_images,
}
_SPACE = frozenset({"mkdirat", "fallocate", "pwritev", "pwritev2", "fsync", "renameat2"})
_UNINTERRUPTED = frozenset({"renameat2", "newfstatat", "getdents64", "unlinkat"})
CASES_OF_PAIRS = 400
_SHORT_CASES = 3  # of each fault of each kind of call


@dataclass(frozen=True, slots=True)
class Case:
    """One victim and its faults."""

    way: str
    faults: tuple[Fault, ...]

    def __str__(self) -> str:
        return f"{self.way}: {', then '.join(map(str, self.faults))}"


def run(seed: int, *, is_short: bool, only: int | None) -> list[Tally]:
    """Run the part; ``only`` replays the case of that number."""
    tally = Tally("system calls")
    tally.skipped = why_not()
    if tally.skipped:
        return [tally]
    with scratch() as root:
        campaign = _Campaign(root, seed, tally)
        numbered = list(enumerate(campaign.cases()))
        if only is not None:
            numbered = numbered[only : only + 1]
        elif is_short:
            numbered = _sample(numbered, seed)
        for number, case in numbered:
            campaign.run(number, case)
    return [tally]


def _sample(numbered: list[tuple[int, Case]], seed: int) -> list[tuple[int, Case]]:
    """Choose some cases of each kind of fault, however rare its calls are."""
    choose = random.Random(seed)
    kinds: dict[tuple[str, str], list[tuple[int, Case]]] = {}
    for number, case in numbered:
        first = case.faults[0]
        kinds.setdefault((first.call.name, first.kind), []).append((number, case))
    chosen = [choose.sample(cases, min(_SHORT_CASES, len(cases))) for cases in kinds.values()]
    return sorted((pair for cases in chosen for pair in cases), key=lambda pair: pair[0])


class _Campaign:
    """A pristine run directory, and one that is made from it for each case."""

    def __init__(self, root: Path, seed: int, tally: Tally) -> None:
        self._pristine, self._run_dir = root / "pristine", root / "run"
        self._seed = seed
        self._tally = tally
        store = open_store(self._pristine)
        for step in (HALF_REMOVED, OLDEST, OLD):
            save_step(store, seed, step)
        hidden = store.directory / removed_name(HALF_REMOVED)
        (store.directory / step_name(HALF_REMOVED)).rename(hidden)
        sorted(hidden.iterdir())[0].unlink()

    def cases(self) -> Iterator[Case]:
        """Yield every single fault of every call of every way, and seeded pairs of faults."""
        singles: dict[str, list[Fault]] = {}
        for way in WAYS:
            self._renew()
            calls = record(self._work(way))
            singles[way] = [Fault(call, kind) for call in calls for kind in kinds_of(call)]
            self._tally.notes[f"calls of {way}"] = len(calls)
        for way, faults in singles.items():
            yield from (Case(way, (fault,)) for fault in faults)
        choose = random.Random(self._seed)
        for _ in range(CASES_OF_PAIRS):
            way = choose.choice(list(WAYS))
            first, second = choose.sample(singles[way], 2)
            # strace takes one fault for each name, and nothing follows a kill.
            if first.call.name != second.call.name and first.kind != "KILL":
                yield Case(way, (first, second))

    def run(self, number: int, case: Case) -> None:
        """Run a case and complain of all that is wrong after it."""
        self._renew()
        ended = run_victim(self._work(case.way), case.faults)
        verdict = Verdict(self._tally, number, str(case), self._run_dir, self._seed)
        self._tally.cases += 1
        for wrong, what in _complaints(case, ended):
            verdict.complain(wrong, what)
        is_saved = "saved" in ended.said.split("\n")
        self._tally.note("acknowledged" if is_saved else "not acknowledged")
        found = verdict.restored_step(NEW if is_saved else OLD)
        if ended.code == 0 and "failed" not in ended.said and found != NEW:
            verdict.complain(Wrong.FALSE, f"exit 0, and step {found} is there")
        verdict.carries_on(NEW)

    def _renew(self) -> None:
        shutil.rmtree(self._run_dir, ignore_errors=True)
        shutil.copytree(self._pristine, self._run_dir)

    def _work(self, way: str) -> Callable[[Callable[[str], None]], None]:
        return lambda say: _train(self._run_dir, self._seed, way, say)


def kinds_of(call: Call) -> Iterator[str]:
    """Yield what may happen to a call."""
    yield "KILL"
    if call.name == "write":  # of the acknowledgement, which is ours and not the store's
        return
    yield "EIO"
    if call.name in _SPACE or "O_CREAT" in call.text:
        yield "ENOSPC"
    if call.name not in _UNINTERRUPTED:
        yield "EINTR"
    if call.name == "openat":
        yield "EMFILE"
    if call.name == "fallocate":
        yield "EOPNOTSUPP"


def _train(run_dir: Path, seed: int, way: str, say: Callable[[str], None]) -> None:
    """Do what a relaunched job does, in the order in which it does it."""
    store = open_store(run_dir)
    try:
        restored, _ = restore_newest(store, run_id=RUN_ID)
    except CheckpointError as error:
        say(f"restore failed: {error}")
        return
    if restored and not same(restored.state, state_of(seed, restored.manifest.step)):
        say("restored other bytes")
    try:
        WAYS[way](store, seed, NEW)
    except CheckpointError as error:
        say(f"save failed: {error}")
        return
    say("saved")
    for reason in prune(OwnSteps(store), KEEP):
        say(f"left: {reason}")


def _complaints(case: Case, ended: Ended) -> Iterator[tuple[Wrong, str]]:
    """Yield what the victim itself did wrong."""
    kinds = {fault.kind for fault in case.faults}
    if "restored other bytes" in ended.said:
        yield Wrong.SILENT, "the victim restored other bytes"
    if ended.code != 0 and not (ended.code == -9 and "KILL" in kinds):
        yield Wrong.OTHER, f"the victim ended with {ended.code}, not with an error of ours"
    if len(case.faults) == 1 and "(INJECTED)" not in ended.trace and ended.code != -9:
        yield Wrong.OTHER, "the fault did not strike"
    if kinds <= {"EINTR", "EOPNOTSUPP"} and "failed" in ended.said:
        yield Wrong.OTHER, f"neither an interruption nor a missing call is a failure: {ended.said}"
