"""A run directory that does not answer is told of, and ends a job that has not begun."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run import files as module
from holdfast.runtime.run.files import answering

PROGRAM = """
import sys, threading
from pathlib import Path
from holdfast.runtime.run import answering as module
module.TELLS_AFTER_S, module.GIVES_UP_AFTER_S = 0.05, 0.1
with module.answering(Path("/net/run"), lambda text: print(text, flush=True)):
    threading.Event().wait()
"""


@pytest.mark.process
def test_process_whose_directory_never_answers_says_so_and_can_be_started_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )

    assert done.returncode == ExitCode.STOPPED_EARLY
    first, second = done.stdout.splitlines()
    assert first.startswith("the run directory /net/run has not answered for 0 s; waiting for")
    assert "nothing is known to be damaged; run again when it answers" in second


def test_directory_that_answers_is_not_spoken_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TELLS_AFTER_S", 3600.0)
    told: list[str] = []

    with answering(Path("run"), told.append):
        pass
    with pytest.raises(KeyError), answering(Path("run"), told.append):
        raise KeyError("its own error")

    assert told == []
