"""Saves of several hosts: any order of copies, failures and losses, and what comes of them."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.saves import (
    CommitSave,
    MakeSpace,
    PartHeld,
    RemoveSave,
    SaveAnswered,
    SaveCommitted,
    SaveCoordinator,
    SaveNews,
    SaveOrder,
    SaveRemoved,
    SaveTicket,
    Settled,
    ShareWritten,
    SpaceMade,
    WorkFailed,
    WriteShare,
)

LAUNCH = 3
HOSTS = ("", "b", "c", "d")
"""The head's own may have no name."""


def ticket_of(attempt: int = 1, hosts: int = 3, generation: int = LAUNCH) -> SaveTicket:
    """Return the ticket of a save of step ``10 * attempt``."""
    return SaveTicket(LAUNCH, generation, 10 * attempt, attempt, hosts)


def part_of(ticket: SaveTicket, share: int, digest: str = "d", *, memory: bool = True) -> PartHeld:
    """Return the part of the host with this share."""
    cursor = "{}" if share == 0 else None
    digests = frozenset((digest,))
    return PartHeld(ticket, share, digests, 0.1, cursor, memory, HOSTS[share])


def hold_all(saves: SaveCoordinator, ticket: SaveTicket) -> list[SaveOrder]:
    """Let all hosts hold a save; return the orders."""
    return [order for share in range(ticket.hosts) for order in saves.take(part_of(ticket, share))]


def test_each_host_writes_its_own_share_and_the_last_word_commits() -> None:
    saves, ticket = SaveCoordinator(LAUNCH), ticket_of()

    assert hold_all(saves, ticket) == [WriteShare(ticket, n, HOSTS[n]) for n in range(3)]
    assert saves.take(ShareWritten(ticket, 2, ("z",))) == []
    assert saves.take(ShareWritten(ticket, 0, ("x", "y"))) == []
    commit = CommitSave(ticket, (("x", "y"), (), ("z",)), "{}", 0.0)
    assert saves.take(ShareWritten(ticket, 1, ())) == [commit]
    assert saves.take(SaveCommitted(ticket)) == [SaveAnswered(ticket, is_durable=True)]


def test_nothing_is_committed_before_all_hosts_have_copied_the_same() -> None:
    saves, ticket = SaveCoordinator(LAUNCH), ticket_of(hosts=2)
    saves.take(part_of(ticket, 0))

    assert saves.take(part_of(ticket, 1, "other")) == []  # the first is still being written
    assert saves.take(ShareWritten(ticket, 0, ())) == [RemoveSave(ticket)]
    (answer,) = saves.take(SaveRemoved(ticket))
    assert isinstance(answer, SaveAnswered)
    assert not answer.is_durable
    assert "states differ after step 10" in answer.reason


def test_full_disk_makes_room_once_and_what_has_failed_is_tried_again() -> None:
    saves, ticket = SaveCoordinator(LAUNCH), ticket_of(hosts=1)
    hold_all(saves, ticket)
    full = WorkFailed(ticket, 0, "no space", is_full=True)

    assert saves.take(full) == [MakeSpace(ticket)]
    assert saves.take(SpaceMade(ticket)) == [WriteShare(ticket, 0, "")]
    assert saves.take(full) == [RemoveSave(ticket)]
    assert saves.take(SaveRemoved(ticket)) == [SaveAnswered(ticket, False, "no space")]


@pytest.mark.parametrize("news", ["later save", "later world"])
def test_save_that_lacks_a_part_fails_as_expected_when_no_part_can_come(news: str) -> None:
    saves, ticket = SaveCoordinator(LAUNCH), ticket_of(hosts=2)
    saves.take(part_of(ticket, 0))
    saves.take(ShareWritten(ticket, 0, ()))

    if news == "later save":
        orders = saves.take(part_of(ticket_of(2, hosts=2), 0))
    else:
        orders = saves.begin_world(LAUNCH + 1)

    assert RemoveSave(ticket) in orders
    (answer,) = saves.take(SaveRemoved(ticket))
    assert isinstance(answer, SaveAnswered)
    assert answer.is_expected


def test_lost_host_ends_a_save_that_needs_it_and_its_share_is_settled_by_the_next() -> None:
    saves, ticket = SaveCoordinator(LAUNCH), ticket_of()
    hold_all(saves, ticket)
    saves.take(ShareWritten(ticket, 0, ()))
    saves.take(ShareWritten(ticket, 2, ()))

    assert saves.lose_host("b") == [RemoveSave(ticket)]
    (answer,) = saves.take(SaveRemoved(ticket))
    assert isinstance(answer, SaveAnswered)
    assert answer.is_expected
    assert saves.settle() == [
        WriteShare(ticket, 0, ""), WriteShare(ticket, 1, "c"), WriteShare(ticket, 2, "c"),
    ]  # fmt: skip


def test_host_without_memory_is_told_nothing_and_its_save_is_not_settled() -> None:
    saves, ticket = SaveCoordinator(LAUNCH), ticket_of(hosts=1)

    assert saves.take(part_of(ticket, 0, memory=False)) == []
    assert saves.take(WorkFailed(ticket, 0, "disk")) == [RemoveSave(ticket)]
    saves.take(SaveRemoved(ticket))
    assert saves.settle() == [Settled(None)]


def test_full_disk_makes_room_for_the_next_save_of_a_host_without_memory() -> None:
    saves, ticket = SaveCoordinator(LAUNCH), ticket_of(hosts=1)
    saves.take(part_of(ticket, 0, memory=False))

    assert saves.take(WorkFailed(ticket, 0, "no space", is_full=True)) == [MakeSpace(ticket)]
    assert saves.take(SpaceMade(ticket)) == [RemoveSave(ticket)]
    assert saves.take(SaveRemoved(ticket)) == [SaveAnswered(ticket, False, "no space")]


@pytest.mark.parametrize("held", [(), (0,), (0, 2)])
def test_worker_that_cannot_copy_fails_the_save_of_all_hosts(held: tuple[int, ...]) -> None:
    saves, ticket = SaveCoordinator(LAUNCH), ticket_of()
    for share in held:
        saves.take(part_of(ticket, share))

    orders = saves.take(WorkFailed(ticket, 1, "no memory"))
    for share in held:
        assert orders == []
        orders = saves.take(ShareWritten(ticket, share, ()))
    if held:
        assert orders == [RemoveSave(ticket)]
        orders = saves.take(SaveRemoved(ticket))

    assert orders == [SaveAnswered(ticket, False, "no memory")]
    assert saves.take(part_of(ticket, 1)) == []


def test_share_of_a_host_without_memory_is_left_to_its_worker_until_that_is_dead() -> None:
    """Two writers of one file would let a save be committed that is not durable yet."""
    saves, ticket = SaveCoordinator(LAUNCH), ticket_of(hosts=2)
    saves.take(part_of(ticket, 0))

    assert saves.take(part_of(ticket, 1, memory=False)) == []
    assert saves.take(ShareWritten(ticket, 0, ())) == []
    assert saves.settle() == [WriteShare(ticket, 1, "")]


def test_save_ends_with_the_world_if_a_host_without_memory_has_not_written() -> None:
    """Its worker may have died in it, and others wait for the answer before they copy again."""
    saves, ticket = SaveCoordinator(LAUNCH), ticket_of(hosts=2)
    saves.take(part_of(ticket, 0))
    saves.take(part_of(ticket, 1, memory=False))
    saves.take(ShareWritten(ticket, 0, ()))

    assert saves.begin_world(LAUNCH + 1) == [RemoveSave(ticket)]
    (answer,) = saves.take(SaveRemoved(ticket))
    assert isinstance(answer, SaveAnswered)
    assert answer.is_expected


class _World:
    """Hosts, their writers and a disk, by dice; looks at each order and at each end."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.saves = SaveCoordinator(LAUNCH)
        self.living = list(HOSTS[: dice.randrange(1, 5)])
        self.generation = LAUNCH
        self.attempt = 0
        self.without = {host for host in HOSTS if dice.random() < 0.2}
        """Hosts without memory, whose workers write by themselves."""
        self.held: dict[SaveTicket, dict[int, tuple[str, str]]] = {}
        """Host and digest of each part."""
        self.written: dict[SaveTicket, set[int]] = {}
        self.committed: list[SaveTicket] = []
        self.answered: list[SaveTicket] = []
        self.inbox: deque[tuple[str, SaveNews]] = deque()
        """What is on its way to the head, and from which host."""
        self.fails = dice.choice([0.0, 0.1, 0.5])
        self.settled: Settled | None = None
        self.heard = 0
        """The newest attempt that the head knows."""

    def carry_out(self, orders: list[SaveOrder]) -> None:
        """Do what is ordered; the answers are on their way then."""
        for order in orders:
            ticket = order.ticket if not isinstance(order, Settled) else None
            match order:
                case WriteShare(ticket, share, host):
                    assert host in self.living
                    assert host not in self.without
                    numbers = (share, (share + 1) % ticket.hosts)
                    assert host in [
                        self.held[ticket][n][0] for n in numbers if n in self.held[ticket]
                    ]
                    self.answer(host, order, ShareWritten(ticket, share, (str(share),)))
                case CommitSave(ticket, records):
                    assert records == tuple((str(share),) for share in range(ticket.hosts))
                    assert self.written[ticket] == set(range(ticket.hosts))
                    assert len({digest for _, digest in self.held[ticket].values()}) == 1
                    self.answer("", order, SaveCommitted(ticket))
                case MakeSpace(ticket):
                    self.inbox.append(("", SpaceMade(ticket)))
                case RemoveSave(ticket):
                    assert not any(
                        isinstance(news, ShareWritten) and news.ticket == ticket
                        for host, news in self.inbox
                        if host not in self.without
                    )
                    self.written[ticket] = set()
                    self.inbox.append(("", SaveRemoved(ticket)))
                case SaveAnswered(ticket, is_durable):
                    assert ticket not in self.answered
                    assert is_durable == (ticket in self.committed)
                    self.answered.append(ticket)
                case Settled():
                    self.settled = order

    def answer(self, host: str, order: WriteShare | CommitSave, done: SaveNews) -> None:
        """Let a writer do something, or fail."""
        share = order.share if isinstance(order, WriteShare) else None
        if self.dice.random() < self.fails:
            is_full = self.dice.random() < 0.5
            self.inbox.append((host, WorkFailed(order.ticket, share, "disk", is_full)))
            return
        if share is not None:
            self.written.setdefault(order.ticket, set()).add(share)
        else:
            self.committed.append(order.ticket)
        self.inbox.append((host, done))

    def begin(self) -> None:
        """Some or all hosts copy a save."""
        self.attempt += 1
        ticket = ticket_of(self.attempt, len(self.living), self.generation)
        parts = self.held[ticket] = {}
        odd = self.dice.random() < 0.1
        for share, host in enumerate(self.living):
            if self.dice.random() < 0.9:
                digest = "odd" if odd and share == 0 else "d"
                parts[share] = host, digest
                told = part_of(ticket, share, digest, memory=host not in self.without)
                self.inbox.append((host, replace(told, host=host)))
                if host in self.without and self.dice.random() < 0.8:
                    written = ShareWritten(ticket, share, (str(share),))
                    self.answer(host, WriteShare(ticket, share, host), written)
            elif self.dice.random() < 0.5:
                self.inbox.append((host, WorkFailed(ticket, share, "it cannot copy")))

    def deliver(self) -> None:
        """Let the head hear the next message of a host."""
        hosts = list(dict.fromkeys(host for host, _ in self.inbox))
        if hosts:
            host = self.dice.choice(hosts)
            found = next(pair for pair in self.inbox if pair[0] == host)
            self.inbox.remove(found)
            self.heard = max(self.heard, found[1].ticket.attempt)
            self.carry_out(self.saves.take(found[1]))

    def lose(self) -> None:
        """A host but the first is lost, with all that is on its way from there."""
        if len(self.living) > 1:
            host = self.living.pop(self.dice.randrange(1, len(self.living)))
            self.inbox = deque(pair for pair in self.inbox if pair[0] != host)
            self.carry_out(self.saves.lose_host(host))
            self.generation += 1
            self.carry_out(self.saves.begin_world(self.generation))

    def newest_in_memory(self) -> SaveTicket | None:
        """Return the newest save that the living hold whole, of those that the head may know."""
        for ticket in sorted(self.held, key=lambda one: one.attempt)[:-5:-1]:
            living = set(self.living) - self.without
            parts = {n: host for n, (host, _) in self.held[ticket].items() if host in living}
            is_whole = all(
                n in parts or (n + 1) % ticket.hosts in parts for n in range(ticket.hosts)
            )
            is_same = len({digest for _, digest in self.held[ticket].values()}) == 1
            if is_whole and 0 in self.held[ticket] and is_same:
                return ticket
        return None


@given(dice=st.randoms(use_true_random=False))
def test_any_course_ends_and_keeps_what_is_whole_in_memory(dice: Random) -> None:
    world = _World(dice)
    for _ in range(dice.randrange(60)):
        act = dice.choices([world.begin, world.deliver, world.lose], [3, 8, 1])[0]
        act()
    while world.inbox:
        world.deliver()
    if dice.random() < 0.5:
        world.carry_out(world.saves.begin_world(world.generation + 1))
        while world.inbox:
            world.deliver()
        assert max((ticket.attempt for ticket in world.answered), default=0) == world.heard
    world.fails = 0.0

    world.carry_out(world.saves.settle())
    while world.inbox:
        world.deliver()

    assert world.settled is not None
    newest = world.newest_in_memory()
    if newest is not None:
        assert world.settled.step is not None
        assert world.settled.step >= newest.step
    assert world.settled.step in {None, *(ticket.step for ticket in world.committed)}
