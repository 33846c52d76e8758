"""Two hosts: one process writes a share of a save, and another one commits it with its own.

One of the two is the victim.  What it says is what the other one goes by.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from host import Agent, Head, HostMemory, begin_run, plan_of
from job import save_step
from supervision import Say
from tally import Wrong
from verdict import Verdict
from victim import RUN, Aftermath, Intrusion

from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.saves import SaveNews, SaveTicket, ShareWritten, WorkFailed, WriteShare
from victims.commit import NEW, NEW_ATTEMPT, NEXT, NEXT_LAUNCH, OLD, OLDEST, Commit

_SHARE = 1
"""That of the host that is not the head's."""


class WriteAlone:
    """The writer of the other host; afterwards the head goes on by itself."""

    name = "share"
    intrusions: Mapping[str, Intrusion] = {}

    def __init__(self) -> None:
        self._memory, self._memory_of_head = HostMemory(_SHARE, 2), HostMemory(0, 2)

    def prepare(self, folder: Path, seed: int) -> None:
        """Make two steps."""
        for step in (OLDEST, OLD):
            save_step(CheckpointStore(folder / RUN), seed, step)
        begin_run(folder / RUN)

    def act(self, folder: Path, seed: int, say: Say) -> None:
        """Be the writer; a thread is the agent."""
        say(_write(folder, seed, self._memory))

    def judge(self, after: Aftermath) -> None:
        """With what it has acknowledged, or without, the head makes the save durable."""
        plan, ticket = plan_of(after.run_dir), self._memory.ticket(NEW, NEW_ATTEMPT)
        agent = Agent(plan, self._memory_of_head, after.seed)
        agent.copy(ticket)
        agent.serve_while(partial(self._commit, agent, ticket, after))
        Verdict.of(after).restored_step(NEW)
        Verdict.of(after).carries_on(NEXT, NEXT_LAUNCH)

    def _commit(self, agent: Agent, ticket: SaveTicket, after: Aftermath) -> None:
        head = Head(agent, partial(_answer_of, " ".join(after.words[-1:])))
        answer = head.save(ticket)
        if after.has_said("wrote") and not answer.is_durable:
            after.complain(Wrong.LOST, f"a share that was written is lost: {answer.reason}")
        if not answer.is_durable and head.settle() != NEW:
            after.complain(Wrong.LOST, f"step {NEW} is not saved from the memory of the other host")


class Join(Commit):
    """The writer on the host of the head, when the other one has written its share."""

    def __init__(self) -> None:
        super().__init__("join", hosts=2)
        self._memory_of_other = HostMemory(_SHARE, 2)
        self._said = ""

    def prepare(self, folder: Path, seed: int) -> None:
        """Make two steps, and the share of the other host."""
        super().prepare(folder, seed)
        self._said = _write(folder, seed, self._memory_of_other)

    def _save_all(self, agent: Agent, say: Say) -> None:
        self._save_new(agent, Head(agent, partial(_answer_of, self._said)), say)


def _write(folder: Path, seed: int, memory: HostMemory) -> str:
    """Write the share of the other host; return the word that tells its end."""
    agent, words = Agent(plan_of(folder / RUN), memory, seed), list[str]()

    def lead() -> None:
        ticket = memory.ticket(NEW, NEW_ATTEMPT)
        agent.copy(ticket)
        answer = agent.work(WriteShare(ticket, _SHARE, ""))
        records = answer.records if isinstance(answer, ShareWritten) else None
        words.append(f"unwritten: {answer}" if records is None else " ".join(["wrote", *records]))

    agent.serve_while(lead)
    return words[0]


def _answer_of(said: str, work: WriteShare) -> SaveNews:
    """Return what the head hears of the other host, whose last word this is."""
    verb, *records = said.split() or [""]
    if verb == "wrote":
        return ShareWritten(work.ticket, work.share, tuple(records))
    return WorkFailed(work.ticket, work.share, said or "it has died")


SHARES = (WriteAlone(), Join())
