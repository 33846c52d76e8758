"""The head names one world after each break, whatever is lost, late, cut, healed or replaced."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.world import MINORITY_WAITS_S, REFUSED, OneWorld, Word, WorkerId

ALL = tuple(WorkerId(worker) for worker in range(4))

_EVENTS = ("dies", "begins", *3 * ("shrinks", "asks", "answers"))
"""Drawn from as they stand: a world needs a shrink, a question and its answer."""


def ids(*workers: int) -> tuple[WorkerId, ...]:
    return tuple(map(WorkerId, workers))


def asked(*proposals: tuple[int, ...], at: float = 10.0) -> OneWorld:
    """Return the worlds of a launch of four workers, some of which have asked."""
    worlds = OneWorld(5, ALL)
    for workers in proposals:
        worlds.ask(WorkerId(workers[0]), ids(*workers), at)
    return worlds


def test_survivors_of_a_known_death_go_on_at_once() -> None:
    worlds = asked((1,))

    assert worlds.next_word(ids(1), 10.0) == Word(WorkerId(1), 6)
    assert (worlds.generation, worlds.workers, worlds.first) == (6, {1}, 1)
    assert worlds.next_word(ids(1), 10.0) is None


@pytest.mark.parametrize(
    ("workers", "is_at_once"),
    [((0, 1, 2), True), ((0, 1), True), ((2, 3), False), ((3,), False)],
    ids=["most", "half with the first worker", "the other half", "one alone"],
)
def test_those_who_may_be_the_smaller_side_wait_for_a_moment(
    workers: tuple[int, ...], *, is_at_once: bool
) -> None:
    """The head knows of no death: those outside may be well."""
    worlds = asked(workers)
    named = Word(WorkerId(workers[0]), 6)

    assert (worlds.next_word(ALL, 10.0) == named) is is_at_once
    if not is_at_once:
        assert worlds.next_word(ALL, 10.0 + MINORITY_WAITS_S) == named


def test_of_two_sides_the_larger_one_is_named_and_the_other_one_ends() -> None:
    worlds = asked((0,), (1, 2, 3))

    assert worlds.next_word(ALL, 10.0) == Word(WorkerId(1), 6)
    assert worlds.next_word(ALL, 10.0) == Word(WorkerId(0), REFUSED, frozenset(ids(0)))


def test_survivors_of_a_second_death_ask_again_and_the_same_members_keep_their_number() -> None:
    worlds = asked((0, 1, 2))
    assert worlds.next_word(ids(0, 1, 2), 10.0) == Word(WorkerId(0), 6)
    worlds.ask(WorkerId(0), ids(0, 1, 2), 11.0)
    assert worlds.next_word(ids(0, 1, 2), 11.0) == Word(WorkerId(0), 6)

    worlds.ask(WorkerId(1), ids(1, 2), 12.0)

    assert worlds.next_word(ids(1, 2), 12.0) == Word(WorkerId(1), 7)


def test_a_question_of_a_world_that_is_gone_names_nobody() -> None:
    """Worker 0 has died while it waited; its question comes after that of the others."""
    worlds = asked((1, 2))
    assert worlds.next_word(ids(1, 2), 10.0) == Word(WorkerId(1), 6)
    worlds.ask(WorkerId(0), ids(0, 1, 2), 11.0)

    assert worlds.next_word(ids(1, 2), 20.0) is None
    worlds.ask(WorkerId(0), ids(0, 1, 2), 11.0)
    assert worlds.next_word(ids(0, 1, 2), 20.0) == Word(WorkerId(0), REFUSED, frozenset(ids(0)))


def test_who_is_well_but_in_no_world_is_found_after_a_while() -> None:
    worlds = asked((0, 1, 2))
    assert worlds.left_behind(ALL, 99.0, 5.0) == set()
    worlds.next_word(ALL, 100.0)

    assert worlds.left_behind(ALL, 104.0, 5.0) == set()
    assert worlds.left_behind(ALL, 106.0, 5.0) == {3}
    assert worlds.left_behind(ids(0, 1, 2), 106.0, 5.0) == set()


@dataclass(eq=False)
class _Communicator:
    """What some workers have shrunk to; it applies with the votes and the word of all of them."""

    members: frozenset[WorkerId]
    launch: int
    number: int | None = None


@dataclass
class _Cluster:
    """Workers, and heads that hear late or not at all, and take the living for dead."""

    count: int
    now: float = 0.0
    launches: int = 0
    alive: set[WorkerId] = field(default_factory=set)
    at: dict[WorkerId, _Communicator] = field(default_factory=dict)
    asking: dict[WorkerId, _Communicator] = field(default_factory=dict)
    """Who waits for a word, and so takes part in nothing else."""
    questions: list[WorkerId] = field(default_factory=list)
    answers: list[Word] = field(default_factory=list)
    applied: dict[int, frozenset[WorkerId]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin the next launch, perhaps of another head; workers of the last one may live on."""
        first = self.launches * self.count
        workers = frozenset(WorkerId(first + number) for number in range(self.count))
        world = _Communicator(workers, self.launches, first + 1)
        self.worlds = OneWorld(first + 1, workers)
        self.launches += 1
        self.alive |= workers
        self.at |= dict.fromkeys(workers, world)

    def end(self, worker: WorkerId) -> None:
        self.alive.discard(worker)
        self.asking.pop(worker, None)

    def shrink(self, workers: set[WorkerId]) -> None:
        """Let members of one world form another one, as if all others were dead."""
        before = self.at[min(workers)]
        free = workers & self.alive - self.asking.keys()
        members = frozenset(worker for worker in free if self.at[worker] is before)
        if not members:
            return
        world = _Communicator(members, before.launch)
        self.at |= dict.fromkeys(members, world)
        self.asking[min(members)] = world
        self.questions.append(min(members))

    def ask(self, number: int, missed: set[WorkerId]) -> None:
        """Let a question arrive, in whatever order, at a head that takes the ``missed`` for dead.

        That of a later launch knows nothing of it.
        """
        asker = self.questions.pop(number)
        world = self.asking.get(asker)
        if world is not None and world.launch == self.launches - 1:
            self.worlds.ask(asker, world.members, self.now)
        word = self.worlds.next_word(set(self.at) - missed, self.now)
        if word is not None:
            self.answers.append(word)

    def answer(self, number: int) -> None:
        """Let a word arrive; if a member has left meanwhile, its exchange breaks."""
        word = self.answers.pop(number)
        if word.generation == REFUSED:
            for worker in word.outside:
                self.end(worker)
            return
        world = self.asking.pop(word.asker, None)
        if world is not None and all(self.at[worker] is world for worker in world.members):
            world.number = word.generation

    def apply(self, world: _Communicator) -> None:
        """Let a world apply a step, if all have the word and vote."""
        votes = [worker in self.alive and self.at[worker] is world for worker in world.members]
        if world.number is None or not all(votes):
            return
        number = world.number
        assert self.applied.setdefault(number, world.members) == world.members
        numbers = range(1 + world.launch * self.count, 1 + (world.launch + 1) * self.count)
        assert number in numbers, "a number of another launch"
        assert number == max(self.applied.keys() & set(numbers)), "an older world applies again"


@given(data=st.data(), workers=st.integers(2, 5))
def test_at_most_one_world_of_a_generation_ever_applies(data: st.DataObject, workers: int) -> None:
    cluster = _Cluster(workers)
    for event in data.draw(st.lists(st.sampled_from(_EVENTS), min_size=20, max_size=60)):
        cluster.now += data.draw(st.sampled_from([0.0, 0.4, 2.0]), label="seconds")
        place = data.draw(st.integers(0, 5), label="which")
        one = sorted(cluster.at)[-1 - place % len(cluster.at)]
        if event == "dies":
            cluster.end(one)
        elif event == "shrinks":
            world = sorted(cluster.at[one].members)
            cluster.shrink(data.draw(st.sets(st.sampled_from(world), min_size=1), label="side"))
        elif event == "asks" and cluster.questions:
            missed = data.draw(st.sets(st.sampled_from(sorted(cluster.at)), max_size=2))
            cluster.ask(place % len(cluster.questions), missed)
        elif event == "answers" and cluster.answers:
            cluster.answer(place % len(cluster.answers))
        elif event == "begins" and cluster.launches < 3:
            cluster.begin()
        for made in set(cluster.at.values()):
            cluster.apply(made)
