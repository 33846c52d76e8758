"""What workers spend their steps on, and for which one the others wait."""

from __future__ import annotations

import pytest

from holdfast.runtime.commands.job_status import shares_in_words, slowest_in_words
from holdfast.runtime.run.progress import WorkerReport


def worker(number: int, host: str = "", **spent_s: float) -> WorkerReport:
    return WorkerReport(number, 7, "training", 5, 1, None, None, host=host, spent_s=spent_s)


def test_parts_are_those_of_steps_alone_the_largest_first() -> None:
    found = worker(0, script=100.0, compile=50.0, wait=1.0, compute=3.0, vote=0.001)

    assert shares_in_words(found) == "compute 75%, wait 25%"


def test_worker_before_its_first_step_has_none() -> None:
    assert shares_in_words(worker(0, script=100.0)) == ""


SLOW = worker(2, "node1", read=6.0, compute=3.8, wait=0.2)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([worker(0, wait=4.0, compute=6.0), worker(1, exchange=2.0, compute=8.0)], "30%"),
        ([worker(0, wait=1.0, compute=9.0)], None),
        ([worker(0, wait=1.0, vote=8.0, compute=1.0)], None),
        ([worker(0, script=9.0)], None),
        ([], None),
    ],
    ids=["they wait", "they hardly wait", "they vote", "they have not begun", "alone"],
)
def test_slowest_is_named_if_the_others_wait_for_it(
    others: list[WorkerReport], words: str | None
) -> None:
    found = slowest_in_words([*others, SLOW])

    assert found == (
        f"worker 2 on node1, most of it in read: the others wait for {words} of their time, and "
        "it for 2%"
        if words
        else ""
    )
