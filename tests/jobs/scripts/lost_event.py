"""The custom replica of the examples, in an MPI that once loses an event: no vote ever ends.

The first launch hangs in its tenth vote, on every worker, as if a death had not been told.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from holdfast.runtime.exchange.mpi_communicator import MpiCommunicator

LOST_VOTE = 10
happened = Path(sys.argv.pop(1))


def losing(agree: Callable[[MpiCommunicator, int], int]) -> Callable[[MpiCommunicator, int], int]:
    """Return ``agree`` such that one vote never ends."""
    votes = count(1)

    def agree_or_hang(communicator: MpiCommunicator, flags: int) -> int:
        if next(votes) == LOST_VOTE:
            happened.touch()
            time.sleep(10**6)
        return agree(communicator, flags)

    return agree_or_hang


if not happened.exists():
    MpiCommunicator.agree = losing(MpiCommunicator.agree)  # type: ignore[method-assign]

PACED = Path(__file__).parent / "paced.py"
SPEC = importlib.util.spec_from_file_location("paced", PACED)
assert SPEC is not None
assert SPEC.loader is not None
SPEC.loader.exec_module(importlib.util.module_from_spec(SPEC))
