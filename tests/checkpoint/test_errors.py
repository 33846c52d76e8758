"""Messages say what failed, the values, and what to do; every error is a CheckpointError."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from holdfast.checkpoint import errors
from holdfast.checkpoint.errors import (
    CheckpointUnreadable,
    StorageFailed,
)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EMFILE, 0, 9999])
def test_storage_failure_says_what_to_do(number: int) -> None:
    failure = StorageFailed("fsync", Path("/a/b"), OSError(number, os.strerror(number)))

    assert str(failure).startswith(f"cannot fsync /a/b: {os.strerror(number)} (")
    assert re.search(r"\); [a-z]+ [a-z ]+", str(failure)), "what to do"
    assert failure.errno == number


@pytest.mark.parametrize("number", sorted(errors.TRANSIENT))
def test_unreadable_checkpoint_is_called_neither_invalid_nor_damaged(number: int) -> None:
    failure = StorageFailed("open", Path("/a/b"), OSError(number, os.strerror(number)))

    error = CheckpointUnreadable.of(30, failure)

    assert (error.step, error.errno, error.path) == (30, number, Path("/a/b"))
    assert str(error).startswith("checkpoint step 30 could not be read: cannot open /a/b: ")
    assert str(error).endswith("; it is not known to be damaged: try again")
    assert "is invalid" not in str(error)


@pytest.mark.parametrize(
    ("number", "is_full"),
    [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EIO, False), (errno.ENOMEM, False)],
)
def test_full_disk_and_full_quota_are_told_from_other_failures(number: int, is_full: bool) -> None:  # noqa: FBT001
    failure = StorageFailed("allocate", Path("/a"), OSError(number, os.strerror(number)))

    assert failure.is_full is is_full
