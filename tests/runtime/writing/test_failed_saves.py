"""What a user is told of saves that fail one after the other."""

from __future__ import annotations

from holdfast.runtime.writing.failed_saves import FailedSaves

FULL = "cannot allocate /run/.tmp-000000000{0}-g1-a{1}/shard: No space left on device (ENOSPC)"


def test_reason_that_comes_again_is_told_in_full_once() -> None:
    failed = FailedSaves()

    told = [failed.sentence(10 * n, FULL.format(10 * n, n)) for n in (1, 2, 3)]

    assert told == [
        f"the checkpoint of step 10 failed: {FULL.format(10, 1)}",
        "the checkpoint of step 20 failed for the same reason",
        "the checkpoint of step 30 failed for the same reason",
    ]


def test_another_reason_is_told_in_full() -> None:
    failed = FailedSaves()
    failed.sentence(10, FULL.format(10, 1))

    assert (
        failed.sentence(20, "it is read-only")
        == "the checkpoint of step 20 failed: it is read-only"
    )
    assert failed.sentence(30, FULL.format(30, 3)).endswith("(ENOSPC)")


def test_reason_is_told_in_full_again_after_a_save_that_succeeded() -> None:
    failed = FailedSaves()
    failed.sentence(10, "it is full")

    assert failed.succeeded(15) == "checkpoints are saved again, from step 15 on"
    assert failed.succeeded(16) is None
    assert failed.sentence(20, "it is full") == "the checkpoint of step 20 failed: it is full"
