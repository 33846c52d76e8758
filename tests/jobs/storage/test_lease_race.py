"""Of many processes that want a lease without locks at once, one gets it.

Two never get it both.  Of three, one may think so for a moment, if the others have moved a
file by mistake: the lease says whose it is, and each proof reads it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lease_racer
import pytest
from extended import extended, shortened

from holdfast.runtime.run.files import open_to_write
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import RunDirectory

pytestmark = pytest.mark.process

ROUNDS = 40


class Racer:
    """One process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, lease_racer.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, path: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the racer has died"
        return line.strip()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def racers() -> Iterator[list[Racer]]:
    racers = [Racer() for _ in range(3)]
    yield racers
    for racer in racers:
        racer.close()


@pytest.mark.parametrize("count", shortened([2, 3], here=[3]))
@pytest.mark.parametrize("left", ["nothing", "a dead owner's", extended("an empty file")])
def test_one_of_many_takers_gets_the_lease(
    racers: list[Racer], tmp_path: Path, left: str, count: int
) -> None:
    winners, racers = set(), racers[:count]
    for number in range(ROUNDS):
        directory = RunDirectory(tmp_path / str(number) / "run")
        directory.prepare()
        if left != "nothing":
            dead = Lease(open_to_write(directory.lease_path))
            if left == "a dead owner's":
                dead.begin("the dead", takes_orders=True, is_renewed=True)
            dead.release()
        for racer in racers:
            racer.say(directory.path)
        assert [racer.hear() for racer in racers] == ["watched"] * count

        directory.path.with_name("go").touch()

        found = [racer.hear() for racer in racers]
        token = directory.lease_owner().token
        assert found.count(token) == 1
        assert count > 2 or found.count("") == 1
        winners.add(found.index(token))
    assert len(winners) > 1, "the same one was first each time, so nobody raced"
