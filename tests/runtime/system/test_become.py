"""The process that becomes mpiexec lives no longer than its agent."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.system import become
from holdfast.runtime.system.processes import wait_all_ended

BOUND_S = 60.0
SHIM = (sys.executable, "-I", "-S", str(become.__file__))
AGENT = """
import os, subprocess, sys
line = [*sys.argv[1:], str(os.getpid()), "/bin/sh", "-c", "echo begun; exec sleep 600"]
child = subprocess.Popen(line, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
"""Its mpiexec has begun when it prints."""


@pytest.mark.process
def test_process_whose_agent_is_gone_never_becomes_mpiexec(tmp_path: Path) -> None:
    line = [*SHIM, "1", "touch", f"{tmp_path}/begun"]

    ended = subprocess.run(line, timeout=BOUND_S, check=False)

    assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_mpiexec_dies_with_its_agent() -> None:
    agent = subprocess.Popen([sys.executable, "-c", AGENT, *SHIM], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    mpiexec = int(agent.stdout.readline())

    agent.kill()
    agent.communicate()

    assert wait_all_ended([mpiexec], BOUND_S) == ()
