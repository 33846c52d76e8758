"""The host's writer: it writes and commits what the workers have copied, also when they are dead.

Some saves must be refused: their workers' states differ, or their memory has changed.  The
step of the good one may be there already: damaged, whole, or of another run.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from damages.ways import read_files
from host import Agent, Head, HostMemory, begin_run, plan_of, settled_by_another
from job import RUN_ID, save_step, spoil
from supervision import Say
from tally import Wrong
from verdict import Verdict
from victim import RUN, Aftermath, Intrusion

from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.saves import SaveAnswered

OLDEST, OLD, DIFFERENT, FLIPPED, NEW, TORN, NEXT = 10, 20, 22, 24, 30, 35, 50
NEXT_LAUNCH = 9
NEW_ATTEMPT = 3


class Commit:
    """All parts of a save are told, and the workers live."""

    intrusions: Mapping[str, Intrusion] = {}

    def __init__(self, name: str, prior: str = "", *, hosts: int = 1) -> None:
        self.name = name
        self._prior = prior
        self._memory = HostMemory(hosts=hosts)
        self._foreign: dict[str, bytes] = {}

    def prepare(self, folder: Path, seed: int) -> None:
        """Make two steps; and the step that will be saved, if it is there before."""
        store = CheckpointStore(folder / RUN)
        for step in (OLDEST, OLD):
            save_step(store, seed, step)
        begin_run(folder / RUN)
        if self._prior:
            run_id = "foreign" if self._prior == "foreign" else RUN_ID
            other = seed + (self._prior == "foreign")
            save_step(store, other, NEW, run_id=run_id)
        if self._prior == "damaged":
            spoil(store, NEW, shard=1)
        self._foreign = read_files(store.directory / step_name(NEW))

    def act(self, folder: Path, seed: int, say: Say) -> None:
        """Be the writer; a thread is the agent."""
        agent = Agent(plan_of(folder / RUN), self._memory, seed)
        agent.serve_while(partial(self._save_all, agent, say))

    def _save_all(self, agent: Agent, say: Say) -> None:
        head, memory = Head(agent), agent.memory
        different, flipped = memory.ticket(DIFFERENT, 1), memory.ticket(FLIPPED, 2)
        agent.copy(different, 0)
        agent.copy(different, 1, digest="ab" * 16)
        tell_answer(head.save(different), say)
        agent.copy(flipped, 0)
        memory.flip_a_bit(flipped)
        agent.copy(flipped, 1)
        tell_answer(head.save(flipped), say)
        self._save_new(agent, head, say)

    def _save_new(self, agent: Agent, head: Head, say: Say) -> None:
        """Save the good one; if that fails, let all workers die."""
        new = agent.memory.ticket(NEW, NEW_ATTEMPT)
        agent.copy(new)
        say(f"copied {NEW}")
        if not tell_answer(head.save(new), say):
            tell_settled(head.settle(), say)

    def judge(self, after: Aftermath) -> None:
        """What was acknowledged is there, and a new writer makes durable what was copied."""
        saved = after.steps("saved")
        for step in sorted(saved & {DIFFERENT, FLIPPED, TORN}):
            after.complain(Wrong.FALSE, f"step {step} was said to be saved, and had to be refused")
        if self._prior == "foreign":
            self._judge_foreign(after, saved)
            return
        had = NEW if self._prior == "whole" else OLD
        verdict = Verdict.of(after, [NEW] if self._prior == "damaged" else [])
        verdict.restored_step(max({had} | saved))
        if after.has_said("copied") and not after.has_lost_memory:
            if after.has_said("failed to settle") and not after.is_failed:
                after.complain(Wrong.LOST, f"step {NEW} is not saved from memory")
            self._settle_again(after)
        Verdict.of(after, verdict.damaged - saved).carries_on(NEXT, NEXT_LAUNCH)

    def _settle_again(self, after: Aftermath) -> None:
        ticket = self._memory.ticket(NEW, NEW_ATTEMPT)
        step = settled_by_another(plan_of(after.run_dir), self._memory, after.seed, ticket)
        if step != NEW:
            after.complain(Wrong.LOST, f"a new writer does not save step {NEW} from memory")
        Verdict.of(after).restored_step(NEW)

    def _judge_foreign(self, after: Aftermath, saved: set[int]) -> None:
        if saved:
            after.complain(Wrong.FALSE, "a step was saved where another run has one")
        store = CheckpointStore(after.run_dir)
        if read_files(store.directory / step_name(NEW)) != self._foreign:
            after.complain(Wrong.LOST, "another run's step has changed")
        Verdict.of(after).restored_step(OLD)


class Settle(Commit):
    """The writer has died, and then all workers; a new writer is told what is in memory.

    One save is complete, one was copied over in part since, and one was never complete.
    """

    def __init__(self) -> None:
        super().__init__("settle")

    def _save_all(self, agent: Agent, say: Say) -> None:
        head, memory = Head(agent), agent.memory
        for ticket in (memory.ticket(NEW, NEW_ATTEMPT), memory.ticket(TORN, 4)):
            agent.copy(ticket)
            head.fail(ticket)
        memory.begin_copy(0, memory.ticket(NEXT, 6), 0)  # in the buffer of the torn one
        say(f"copied {NEW}")
        tell_settled(head.settle(), say)


def tell_answer(answer: SaveAnswered, say: Say) -> bool:
    """Say how a save was answered; return whether it is saved."""
    if answer.is_durable:
        say(f"saved {answer.ticket.step}")
    else:
        say(f"unsaved {answer.ticket.step}: {answer.reason}")
    return answer.is_durable


def tell_settled(step: int | None, say: Say) -> None:
    """Say what is durable when all workers are dead."""
    say(f"saved {step}" if step else "failed to settle")


COMMITS = (
    Commit("commit"),
    Commit("replace", prior="damaged"),
    Commit("again", prior="whole"),
    Commit("foreign", prior="foreign"),
    Settle(),
)
