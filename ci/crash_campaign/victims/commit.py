"""The host's writer: it commits what the workers have copied, and settles when they are dead.

Some saves must be refused: their workers' states differ, or their memory has changed.  The
step of the good one may be there already: damaged, whole, or of another run.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

from damages.ways import read_files
from host import PARTS, Agent, HostMemory, begin_run, plan_of, settled_by_another, ticket_of
from job import RUN_ID, save_step, spoil
from supervision import Say
from tally import Wrong
from verdict import Verdict
from victim import RUN, Aftermath, Intrusion

from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.store import CheckpointStore

OLDEST, OLD, DIFFERENT, FLIPPED, NEW, TORN, NEXT = 10, 20, 22, 24, 30, 35, 50
NEXT_LAUNCH = 9
_NEW_ATTEMPT = 3
EVERYONE = tuple(range(PARTS))


class Commit:
    """All parts of a save are told, and the workers live."""

    intrusions: Mapping[str, Intrusion] = {}

    def __init__(self, name: str, prior: str = "") -> None:
        self.name = name
        self._prior = prior
        self._memory = HostMemory()
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
        thread = threading.Thread(target=self._lead, args=(agent, say), daemon=True)
        thread.start()
        agent.serve()
        thread.join()

    def _lead(self, agent: Agent, say: Say) -> None:
        try:
            agent.introduce()
            self._save_all(agent, say)
            agent.rest()
        finally:
            agent.channel.close()

    def _save_all(self, agent: Agent, say: Say) -> None:
        plan = agent.plan
        different, flipped = ticket_of(plan, DIFFERENT, 1), ticket_of(plan, FLIPPED, 2)
        agent.copy(different, *EVERYONE)
        agent.repeat(different, "another")
        _tell_answer(agent, say)
        agent.copy(flipped, 0)
        agent.flip_a_bit(flipped)
        agent.copy(flipped, 1)
        agent.repeat(flipped)
        _tell_answer(agent, say)
        agent.save(ticket_of(plan, NEW, _NEW_ATTEMPT))
        say(f"copied {NEW}")
        if not _tell_answer(agent, say):
            step = agent.settle()
            say(f"saved {step}" if step else "failed to settle")

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
            self._settle_again(after)
        Verdict.of(after, verdict.damaged - saved).carries_on(NEXT, NEXT_LAUNCH)

    def _settle_again(self, after: Aftermath) -> None:
        plan = plan_of(after.run_dir)
        ticket = ticket_of(plan, NEW, _NEW_ATTEMPT)
        step = settled_by_another(plan, self._memory, after.seed, ticket)
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
        whole, torn = ticket_of(agent.plan, NEW, _NEW_ATTEMPT), ticket_of(agent.plan, TORN, 4)
        agent.save(whole, was_durable=False)
        agent.save(torn, was_durable=False)
        agent.rest()  # it has taken both by now
        agent.copy(ticket_of(agent.plan, NEXT, 6), 0)  # in the buffer of the torn one
        say(f"copied {NEW}")
        step = agent.settle()
        say(f"saved {step}" if step else "failed to settle")


def _tell_answer(agent: Agent, say: Say) -> bool:
    """Say how a save was answered; return whether it is saved."""
    answer = agent.answer()
    if answer.is_durable:
        say(f"saved {answer.ticket.step}")
        return True
    say(f"unsaved {answer.ticket.step}: {answer.reason}")
    return False


COMMITS = (
    Commit("commit"),
    Commit("replace", prior="damaged"),
    Commit("again", prior="whole"),
    Commit("foreign", prior="foreign"),
    Settle(),
)
