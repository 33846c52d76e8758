"""What a user is told of saves that fail one after the other."""

from __future__ import annotations

from holdfast.runtime.saving.writer_link import FailedSaves

FULL = "cannot allocate /run/.tmp-000000000{0}-g1-a{1}/shard: No space left on device (ENOSPC)"


def test_reason_that_comes_again_is_told_in_full_once() -> None:
    failed = FailedSaves()

    told = [failed.sentence(10 * n, FULL.format(10 * n, n), is_of_run=True) for n in (1, 2, 3)]

    assert told == [
        f"the checkpoint of step 10 failed: {FULL.format(10, 1)}",
        "the checkpoint of step 20 failed for the same reason",
        "the checkpoint of step 30 failed for the same reason",
    ]


def test_another_reason_is_told_in_full() -> None:
    failed = FailedSaves()
    failed.sentence(10, FULL.format(10, 1), is_of_run=True)

    assert (
        failed.sentence(20, "it is read-only", is_of_run=True)
        == "the checkpoint of step 20 failed: it is read-only"
    )
    told = failed.sentence(30, FULL.format(30, 3), is_of_run=True)
    assert told.endswith("(ENOSPC)")


def test_reason_is_told_in_full_again_after_a_save_that_succeeded() -> None:
    failed = FailedSaves()
    failed.sentence(10, "it is full", is_of_run=True)

    told = failed.succeeded(15, is_in_run=True)
    assert told == "checkpoints are saved again, from step 15 on"
    assert failed.succeeded(16, is_in_run=True) is None
    told = failed.sentence(20, "it is full", is_of_run=True)
    assert told == "the checkpoint of step 20 failed: it is full"


def test_failure_of_the_run_directory_lasts_until_that_takes_a_save() -> None:
    failed = FailedSaves()
    failed.sentence(10, "it is full", is_of_run=True)
    assert failed.succeeded(20, is_in_run=False) is None
    failed.sentence(30, "the writer has died", is_of_run=False)
    assert failed.succeeded(40, is_in_run=False) is None

    told = failed.succeeded(50, is_in_run=True)

    assert told == "checkpoints are saved again, from step 50 on"
    assert failed.succeeded(60, is_in_run=True) is None


def test_failure_that_is_not_of_the_run_directory_lasts_until_the_next_save() -> None:
    failed = FailedSaves()
    failed.sentence(10, "the writer has died", is_of_run=False)

    told = failed.succeeded(20, is_in_run=False)

    assert told == "checkpoints are saved again, from step 20 on"
