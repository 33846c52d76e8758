from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.ledger import Cursor, Ledger

_WORDS = st.integers(0, 2**64 - 1)
_SUMS = st.lists(st.floats(width=64), min_size=1, max_size=4)


def same(left: Cursor, right: Cursor) -> bool:
    return (left.step, left.evaluations, left.ledger) == (
        right.step,
        right.evaluations,
        right.ledger,
    ) and left.sums.tobytes() == right.sums.tobytes()


@given(st.integers(0, 2**62), st.integers(0, 2**31), st.integers(0, 2**62), _WORDS, _SUMS)
def test_tensors_bring_back_every_bit(
    step: int, evaluations: int, samples: int, proof: int, sums: list[float]
) -> None:
    cursor = Cursor(step, evaluations, Ledger(samples, proof), np.array(sums))

    assert same(Cursor.from_tensors(cursor.tensors()), cursor)


def test_tensors_are_copies() -> None:
    cursor = Cursor.start(2)

    cursor.tensors()["cursor/sums"][0] = 5  # type: ignore[call-overload]
    tensors = cursor.tensors()
    restored = Cursor.from_tensors(tensors)
    tensors["cursor/sums"][0] = 5  # type: ignore[call-overload]

    assert not cursor.sums.any()
    assert not restored.sums.any()


def test_every_commit_raises_the_version() -> None:
    cursor = Cursor.start(1)

    stepped = cursor.after_step(4, 99, np.ones(1))
    evaluated = stepped.after_evaluation()

    turned = evaluated.after_turn(1, np.ones(1))
    again = turned.after_turn(2, np.ones(1))
    done = again.after_step(4, 99, np.ones(1))

    cursors = [cursor, stepped, evaluated, turned, again, done]
    versions = [each.version for each in cursors]
    assert versions == sorted(set(versions))
    assert (done.step, done.turn, done.sums.tolist()) == (2, 0, [4.0])
    assert (stepped.step, evaluated.step) == (1, 1)
    assert evaluated.ledger == Ledger(4, 99)


def test_epoch_begins_with_an_empty_ledger_and_empty_sums() -> None:
    cursor = Cursor.start(2).after_step(4, 99, np.ones(2)).after_evaluation()

    begun = cursor.at_epoch_start()

    assert (begun.step, begun.evaluations, begun.ledger) == (1, 1, Ledger())
    assert not begun.sums.any()
    assert cursor.sums.all()


def test_values_do_not_share_their_sums() -> None:
    first = Cursor.start(1)

    second = first.after_step(1, 0, np.ones(1))

    assert not first.sums.any()
    assert second.sums[0] == 1
