from __future__ import annotations

import pytest

from holdfast.recovery.event import (
    Event,
    WorkerCompleted,
    WorkerExited,
    WorkerFailed,
    WorkerStopped,
    WorldFormed,
)
from holdfast.recovery.launch import LaunchView, conclude
from holdfast.recovery.world import WorkerId

A, B = WorkerId(3), WorkerId(4)


def view_of(*events: Event) -> LaunchView:
    view = LaunchView.of((A, B), 5).seeing(WorldFormed(5, (A, B), 0))
    for event in events:
        view = view.seeing(event)  # type: ignore[arg-type]
    return view


def left(*workers: WorkerId) -> list[Event]:
    return [WorkerExited(worker, is_clean=True, cause="exit 0") for worker in workers]


def died(*workers: WorkerId) -> list[Event]:
    return [WorkerExited(worker, is_clean=False, cause="signal SIGKILL") for worker in workers]


def failed(*workers: WorkerId, kind: str = "ValueError", trace: str = "Traceback") -> list[Event]:
    return [WorkerFailed(worker, kind, "no such column", trace, 1) for worker in workers]


def failed_in_training(*workers: WorkerId) -> list[Event]:
    return [
        WorkerFailed(worker, "ValueError", "no such batch", "Traceback", 1, is_in_training=True)
        for worker in workers
    ]


def completed(*workers: WorkerId, sha256: str = "cafe") -> list[Event]:
    return [WorkerCompleted(worker, 20, sha256, is_first=worker == A) for worker in workers]


def again(worker: WorkerId) -> Event:
    """Return the completion of the script's second training, with another first worker."""
    return WorkerCompleted(worker, 30, "f00d", is_first=True)


@pytest.mark.parametrize(
    ("events", "stop_code", "exit_code"),
    [
        ([*completed(A, B), *left(A, B)], None, 0),
        ([*completed(A, B), *left(A), *died(B)], 130, 0),
        ([*completed(A, B), *left(B), *died(A)], None, None),
        ([*completed(A, B), *failed(A), *left(B), *died(A)], None, 1),
        ([*completed(A, B), *failed(B), *left(A), *died(B)], None, 0),
        ([*completed(A, B), *failed(A), *died(A), again(B), *left(B)], None, 1),
        ([*completed(A, B), *failed(B), *died(B), again(A), *left(A)], None, 0),
        ([*completed(A, B), *failed_in_training(A), *died(A), again(B), *left(B)], None, 0),
        ([*completed(A, B), *failed_in_training(A), *died(A, B)], None, None),
        ([*completed(B), *left(B)], None, None),
        ([*completed(A, B), *died(A, B)], None, None),
        ([*completed(A, B), *died(A, B)], 143, 143),
        ([*completed(A), *completed(B, sha256="beef"), *left(A, B)], None, 70),
        ([*completed(A), *completed(B, sha256="beef"), *failed(A, B), *died(A, B)], None, 70),
        ([*failed(A, B), *died(A, B)], None, 1),
        ([*failed(A, B), *died(A, B)], 130, 1),
        ([*failed(A), *died(A, B)], None, None),
        ([WorkerStopped(A, 7), *left(A), *died(B)], 130, 75),
        ([WorkerStopped(A, 7), *died(A, B)], 130, 75),
        (left(A, B), None, 1),
        ([*completed(A, B), *died(A), again(B), *left(B)], None, 0),
        ([*completed(A, B), *died(A), again(B), *died(B)], None, None),
        ([*completed(A, B), WorkerStopped(A, 25), *left(A, B)], None, 75),
        ([*left(A), *died(B)], None, None),
        (died(A, B), 130, 130),
        (died(A, B), None, None),
        ([], None, None),
    ],
)
def test_rules_in_their_order(
    events: list[Event], stop_code: int | None, exit_code: int | None
) -> None:
    end = conclude(view_of(*events), stop_code)

    assert (None if end is None else end.exit_code) == exit_code


def test_error_of_the_script_comes_with_its_kind_and_traceback() -> None:
    end = conclude(view_of(*failed(A, B), *died(A, B)), None)

    assert end is not None
    assert (end.reason, end.traceback) == ("ValueError: no such column", "Traceback")


def test_error_that_one_sentence_explains_comes_without_its_kind() -> None:
    end = conclude(view_of(*failed(A, B, kind="UsageError", trace=""), *died(A, B)), None)

    assert end is not None
    assert (end.reason, end.traceback) == ("no such column", "")


def test_different_bytes_are_named_with_their_step() -> None:
    end = conclude(view_of(*completed(A), *completed(B, sha256="beef"), *left(A, B)), None)

    assert end is not None
    assert "step 20" in end.reason
    assert "beef" in end.reason
    assert "cafe" in end.reason
