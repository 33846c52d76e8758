"""The head's entry: ``python -m holdfast.runtime.head``, the agent of a job's first host."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.runtime.host.__main__ import main as run_agent

if TYPE_CHECKING:
    from holdfast.runtime.host.agent import Agent
    from holdfast.runtime.host.superior import Superior


def main(argv: Sequence[str] | None = None) -> int:
    """Run the head with an agent's command line arguments; return the exit code."""
    return run_agent(argv, _head)


def _head() -> Callable[[Agent], Superior]:
    from holdfast.runtime.head.head import Head  # while the pool imports

    return Head


if __name__ == "__main__":
    sys.exit(main())
