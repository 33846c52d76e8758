"""One mpiexec and what it leaves behind, with a shell script in its place."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from holdfast.runtime.host.launchers import LaunchLine
from holdfast.runtime.host.mpi_host import MpiLaunch
from holdfast.runtime.system.processes import wait_all_ended

pytestmark = pytest.mark.process

BOUND_S = 90.0


def start(folder: Path, script: str) -> MpiLaunch:
    """Start a launch whose mpiexec is a shell script."""
    mpiexec = folder / "mpiexec"
    mpiexec.write_text(f"#!/bin/sh\n{script}\n")
    mpiexec.chmod(0o755)
    directory = folder / "launch-1"
    directory.mkdir()
    line = LaunchLine(mpiexec, 2, directory, ("guard",))
    return MpiLaunch(line, line.environment(os.environ, HOLDFAST_GENERATION="7"))


def wait_for_end(launch: MpiLaunch) -> None:
    assert select.select([launch.end_fd], [], [], BOUND_S)[0]
    assert launch.has_ended


def test_end_of_mpiexec_can_be_waited_for(tmp_path: Path) -> None:
    launch = start(tmp_path, "exit 3")

    wait_for_end(launch)

    launch.clear()
    assert not launch.directory.exists()


def test_what_mpiexec_says_is_kept_until_the_launch_is_cleared(tmp_path: Path) -> None:
    launch = start(tmp_path, "echo '  to stdout'; echo 'to stderr  ' >&2")
    wait_for_end(launch)

    assert launch.words() == "to stdout\nto stderr"

    launch.clear()
    assert launch.words() == ""


def test_of_many_words_the_last_are_kept(tmp_path: Path) -> None:
    launch = start(tmp_path, "seq 1 5000")
    wait_for_end(launch)

    words = launch.words()

    launch.clear()
    assert words.endswith("4999\n5000")
    assert len(words) <= 4096


def test_launch_has_the_command_line_and_the_environment_of_its_line(tmp_path: Path) -> None:
    launch = start(tmp_path, 'echo "$@"; echo "$HOLDFAST_GENERATION $TMPDIR"')
    wait_for_end(launch)

    command, environment = launch.words().splitlines()

    launch.clear()
    assert command.endswith(f"btl_sm_backing_directory {tmp_path}/launch-1 -n 2 guard")
    assert environment == f"7 {tmp_path}/launch-1"


def test_kill_ends_mpiexec_and_all_that_it_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "told")
    launch = start(tmp_path, f"trap '' TERM; sleep 600 & echo $$ $! > {tmp_path}/told; wait; wait")
    pids = [int(pid) for pid in (tmp_path / "told").read_text().split()]
    assert not launch.has_ended

    launch.kill()

    wait_for_end(launch)
    assert wait_all_ended(pids, BOUND_S) == ()
    launch.clear()
    assert not launch.directory.exists()


def test_killing_and_clearing_twice_is_harmless(tmp_path: Path) -> None:
    launch = start(tmp_path, "exit 0")
    wait_for_end(launch)

    launch.kill()
    launch.clear()
    launch.kill()
    launch.clear()

    assert not launch.directory.exists()


def test_exit_code_is_known_as_soon_as_there_is_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    launch = start(tmp_path, f"read line < {tmp_path}/go; exit 3")
    assert launch.exit_code is None

    (tmp_path / "go").write_text("go\n")
    wait_for_end(launch)

    assert launch.exit_code == 3
    launch.clear()


def test_words_that_are_no_text_are_shown_as_far_as_they_are(tmp_path: Path) -> None:
    launch = start(tmp_path, r"printf 'no \377 slots\n'")
    wait_for_end(launch)

    words = launch.words()

    launch.clear()
    assert words == "no \ufffd slots"
