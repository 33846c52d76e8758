"""What `ci/cluster` reads in the journal and the trace of a struck job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))
from struck_job import KINDS, case_of
from struck_journal import (
    Commit,
    Strike,
    Update,
    fenced_commits,
    losses_without_cause,
    outage_of,
    updates_in,
    updates_without_word,
)


def _record(event: str, now: float, **fields: Any) -> dict[str, Any]:
    return {"event": event, "now": now, "time": 1000 + now, **fields}


def _step(now: float, step: int, generation: int) -> dict[str, Any]:
    return _record("step", now, step=step, generation=generation, seconds=0.1)


_LOST = _record("host_lost", 12.0, host="b", reason="silent", workers=[2, 3])
_JOURNAL = [
    _record("launch", 0.0, generation=1),
    _record("world", 0.5, generation=1, workers=[2, 3, 4]),
    _step(9.0, 1, 1),
    _step(10.2, 2, 1),  # it was under way when the host was struck
    _LOST,
    _record("world", 12.4, generation=2, workers=[4]),
    _record("recovery", 12.6, generation=2, lost=[2, 3]),
    _step(12.5, 3, 2),
    _step(12.6, 4, 2),
]


def test_an_outage_ends_with_the_first_step_of_the_world_without_the_lost_ones() -> None:
    outage = outage_of(_JOURNAL, Strike("cut", "b", 10.0))
    assert outage is not None
    assert (outage.began, outage.ended) == (10.2, 12.5)


def test_an_outage_has_not_ended_before_that_step() -> None:
    assert outage_of(_JOURNAL[:6], Strike("cut", "b", 10.0)) is None


def test_the_loss_of_all_ends_with_a_step_of_the_next_launch() -> None:
    journal = [*_JOURNAL, _record("launch", 14.0, generation=3), _step(16.0, 3, 3)]
    outage = outage_of(journal, Strike("head-killed", "a", 13.0))
    assert outage is not None
    assert (outage.began, outage.ended) == (13.0, 16.0)  # a dead head takes records along


def test_a_strike_that_costs_nobody_has_the_longest_time_without_a_step() -> None:
    steps = [_step(1.0, 1, 1), _step(1.1, 2, 1), _step(2.0, 3, 1), _step(2.1, 4, 1)]
    outage = outage_of(steps, Strike("blink", "b", 1.05, undone_at=1.5, may_pass=True))
    assert outage is not None
    assert (outage.began, outage.ended) == (1.1, 2.0)


def test_a_checkpoint_of_a_lost_host_after_the_others_went_on_is_told() -> None:
    before, after = Commit(1, 1, 1012.2), Commit(2, 1, 1013.0)
    assert list(fenced_commits(_JOURNAL, [before])) == []
    (told,) = fenced_commits(_JOURNAL, [after])
    assert told == "b committed step 2 0.600 s after the others went on"
    assert list(fenced_commits(_JOURNAL, [Commit(3, 2, 1013.0)])) == []
    assert list(fenced_commits(_JOURNAL, [after], ["b"])) == []


def test_workers_of_a_second_job_may_have_the_numbers_of_lost_ones() -> None:
    second = [
        _record("job_started", 20.0),
        _record("world", 21.0, generation=3, workers=[2, 3, 4]),
        _record("world", 22.0, generation=4, workers=[2, 3]),
    ]
    assert list(fenced_commits([*_JOURNAL, *second], [Commit(9, 3, 1023.0)])) == []


def test_a_worker_that_trains_on_after_the_loss_of_its_host_is_told() -> None:
    late = updates_in("11.0 b 7\n13.0 b 7\n13.5 c 7\n14.0 b 7\n1")
    assert late[0] == Update(11.0, "b", "b 7")
    assert updates_without_word(_JOURNAL, late[:3]) == {}
    assert updates_without_word(_JOURNAL, late) == {"b 7": 2}


def test_a_lost_world_that_no_other_one_has_followed_has_its_word() -> None:
    late = updates_in("13.0 b 7\n14.0 b 7\n")
    alone = [record for record in _JOURNAL if record.get("generation") != 2]
    assert updates_without_word([*alone, _record("launch", 20.0, generation=3)], late) == {}


def test_a_loss_that_nothing_has_caused_is_told() -> None:
    assert list(losses_without_cause(_JOURNAL, [Strike("cut", "b", 10.0)])) == []
    (told,) = losses_without_cause(_JOURNAL, [Strike("cut", "c", 10.0)])
    assert "host b was lost" in told


def test_each_seed_has_a_case_of_three_losses_to_five() -> None:
    cases = [case_of(seed, KINDS) for seed in range(2000)]
    assert {len(case.blows) for case in cases} == {3, 4, 5}
    assert {blow.kind for case in cases for blow in case.blows} == set(KINDS)
