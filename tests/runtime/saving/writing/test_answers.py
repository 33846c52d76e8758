"""Every complete save is answered once, in any order of parts, deaths, hangs and refused starts."""

from __future__ import annotations

from collections import Counter

import pytest
from fake_writer import PARTS, AgentOfFakes
from hypothesis import given
from hypothesis import strategies as st


class Agent(AgentOfFakes):
    """An agent to whom things happen."""

    def happen(self, event: str) -> None:
        match event:
            case "serve" if self.writer is not None:
                self.writer.serve()
            case "die" if self.writer is not None:
                self.writer.kill()
            case "hang":
                self.link.look(1e6)
            case "refuse" | "allow":
                self.is_refused = event == "refuse"
        self.hear()

    def settle(self) -> int | None:
        found: list[int | None] = []
        self.link.settle(lambda answer: found.append(answer["step"]))
        self.happen("serve")
        (step,) = found
        return step


EVENTS = st.lists(st.sampled_from(["serve", "die", "hang", "refuse", "allow"]), max_size=3)
SAVES = st.lists(
    st.tuples(st.permutations(range(PARTS)), st.integers(1, PARTS), EVENTS, EVENTS),
    min_size=1,
    max_size=6,
)


@given(SAVES)
def test_complete_save_is_answered_once_and_the_newest_is_settled(
    saves: list[tuple[list[int], int, list[str], list[str]]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        agent = Agent(patch)
        complete = []
        for attempt, (order, count, between, after) in enumerate(saves, 1):
            for place, part in enumerate(order[:count]):
                for event in between if place else ():
                    agent.happen(event)
                agent.copied(attempt, part)
            if count == PARTS:
                complete.append(attempt)
            for event in after:
                agent.happen(event)
        agent.happen("allow")
        agent.happen("serve")

        answered = Counter(answer["attempt"] for answer in agent.answers)
        settled = agent.settle()
        before_settle = len(answered)

        assert answered == Counter(complete)
        assert len(Counter(answer["attempt"] for answer in agent.answers)) == before_settle
        if complete and complete[-1] >= len(saves) - 1:  # no later one has taken its memory
            assert settled == 10 * complete[-1]
        agent.close()
