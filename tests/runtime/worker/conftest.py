"""What the tests of a worker's first and last moments share."""

from __future__ import annotations

import pytest

from holdfast.runtime.worker import worker


@pytest.fixture(autouse=True)
def _exit_calls_wait_for_the_end_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that ends in this process would take h5py and `weakref.finalize` with it."""
    monkeypatch.setattr(worker, "end_as_python", lambda: None)
