"""One rank of a trial: the program that mpiexec runs, ``mpi_rank.py DIRECTORY TRIAL``.

The process that mpiexec has started is a guard.  It forks the rank, and turns every unclean
end of it into a SIGKILL of itself, as in a job.  The rank takes steps with its peers: it
exchanges vectors, votes, and repairs the world after a death, with the very code of the
workers.  Then it writes its report.  mpiexec's exit code says nothing once fault tolerance
is on.

Every sum is known beforehand: piece p of step s is the number 1000 s + p, for as many pieces
as the launch had ranks.  A rank owns each piece whose number is its own modulo the size of
the world.  So a dead rank's pieces are adopted by others, and the sum stays the same.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.host.mpi_trial import RankReport, Trial, Where
from holdfast.runtime.system.codec import decode, encode
from holdfast.runtime.system.own_process import die_with_parent

if TYPE_CHECKING:
    from holdfast.runtime.exchange.membership import Membership

LIFETIME_S = 60
"""No rank of a trial outlives this; every caller waits for less."""
STEPS, FATAL_STEP = 6, 2
_MOST_REPAIRS = 32


class WrongResult(Exception):
    """MPI reported success, and the result was wrong."""


def main(directory: Path, trial: Trial) -> NoReturn:
    """Fork the rank, and end as it ended: in peace, or by SIGKILL."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(parent)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.alarm(LIFETIME_S)  # its default action ends even a hanging MPI call
        _play(directory, trial)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status != 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)


def _play(directory: Path, trial: Trial) -> None:
    """Play this rank's part, and write its report in any case."""
    report = RankReport()
    rank = -os.getpid()  # until MPI has told it
    try:
        from holdfast.runtime.exchange.mpi_communicator import join_world

        world = join_world(shrinkable=trial.ulfm)
        if world.size != trial.ranks:
            report.failure = f"mpi4py uses {_library()}, which is not the MPI of this mpiexec"
        else:
            rank = world.rank
            player = _Player(trial, rank, world)
            player.play(report)
    except WrongResult as error:
        report.wrong = str(error)
    except BaseException as error:  # MPI libraries raise, exit and assert as they like
        report.failure = f"{type(error).__name__}: {error}".replace("\n", " ")
    draft = directory / f"draft-{os.getpid()}"
    draft.write_bytes(encode(report))
    draft.replace(directory / f"rank-{rank}.json")
    if rank >= 0 and not report.failure:
        player.leave()  # Hydra kills what is left of a launch whose first rank just ends


class _Player:
    """One rank's steps, and its death if the trial wants it."""

    def __init__(self, trial: Trial, rank: int, communicator: object) -> None:
        from holdfast.runtime.exchange.membership import Membership

        ids = tuple(WorkerId(worker) for worker in range(trial.ranks))
        self._trial = trial
        self._death = next((death for death in trial.deaths if death.rank == rank), None)
        self._membership: Membership = Membership(
            WorkerId(rank),
            World(1, ids, trial.ranks),
            communicator,  # type: ignore[arg-type]
            time.monotonic,
        )

    def play(self, report: RankReport) -> None:
        """Take all steps; after a death repair the world and take the step again."""
        step, repairs = 0, 0
        self._membership.join(0)
        for number in range(self._trial.revokes):
            self._revoke_early(number)
        while step < STEPS or self._membership.world.size > len(self._trial.survivors):
            if step == FATAL_STEP:
                self._strike_later(Where.CLOCK)
            if self._take(step):
                step += 1
            else:
                repairs = self._repair(step, repairs)
        report.steps = step
        report.world = self._membership.world.workers

    def _revoke_early(self, number: int) -> None:
        """Make a world of the same members, which one of them revokes at once.

        Others are still inside Shrink then.  So it goes in a job when a death is noticed by
        those who already have the new world.
        """
        from holdfast.runtime.exchange.membership import WorldBroken

        members = self._membership
        members.communicator.revoke()
        members.communicator = members.communicator.shrink()
        if members.communicator.rank == number % members.communicator.size:
            members.communicator.revoke()
        with contextlib.suppress(WorldBroken):
            members.agree_all(can=False)

    def leave(self) -> None:
        """Return when all survivors have come to the end."""
        self._membership.communicator.leave()

    def _take(self, step: int) -> bool:
        """Return whether all ranks have taken the step."""
        from holdfast.runtime.exchange.membership import WorldBroken

        is_well = 1
        try:
            total = self._exchange(step)
        except WorldBroken:
            is_well = 0
        if is_well:
            self._strike(Where.VOTE, step)
        try:
            is_agreed = self._membership.communicator.agree(is_well) == 1
        except WorldBroken:
            return False
        expected = sum(1000 * step + piece for piece in range(self._trial.ranks))
        if is_agreed and total != expected:
            raise WrongResult(f"step {step} had the sum {total}, and {expected} is right")
        return is_agreed

    def _exchange(self, step: int) -> float:
        """Send this rank's pieces to all peers, and return the sum over all."""
        import numpy as np

        world = self._membership.communicator
        pieces = range(world.rank, self._trial.ranks, world.size)
        length = self._trial.elements
        mine = np.full(length, float(sum(1000 * step + piece for piece in pieces)))
        peers = [peer for peer in range(world.size) if peer != world.rank]
        arrivals = {peer: np.full(length, np.nan) for peer in peers}
        with world.flight() as flight:
            tickets = [flight.receive(arrivals[peer], peer, step) for peer in peers]
            for index, peer in enumerate(peers):
                if index == len(peers) // 2:
                    self._strike(Where.EXCHANGE, step)
                flight.send(mine, peer, step)
            for ticket in tickets:
                flight.wait(ticket)
        total = mine + sum(arrivals.values())
        if not (total == total[0]).all():
            return float("nan")  # part of a message is missing
        return float(total[0])

    def _repair(self, step: int, repairs: int) -> int:
        """Go on with the survivors; return the number of repairs so far."""
        from holdfast.runtime.exchange.membership import WorldBroken

        while repairs < _MOST_REPAIRS:
            repairs += 1
            with contextlib.suppress(WorldBroken):
                self._membership.repair(step, lambda: self._in_repair(step))
                if set(self._membership.versions) != {step}:
                    raise WrongResult(f"survivors are at the steps {self._membership.versions}")
                return repairs
        raise RuntimeError(f"{repairs} repairs in a row have failed")

    def _in_repair(self, step: int) -> None:
        self._strike(Where.REVOKED, step)
        self._strike_later(Where.REPAIR)

    def _strike(self, where: Where, step: int) -> None:
        if self._death is not None and step == FATAL_STEP and self._death.where is where:
            _die(self._death.rank)

    def _strike_later(self, where: Where) -> None:
        death = self._death
        if death is not None and death.where is where:
            threading.Timer(death.delay_ms / 1000, _die, (death.rank,)).start()


def _die(_rank: int) -> None:  # which rank it is matters where ranks are threads
    os.kill(os.getpid(), signal.SIGKILL)


def _library() -> str:
    from mpi4py import MPI

    return MPI.Get_library_version().partition(",")[0].partition("\n")[0].strip(" \0")


if __name__ == "__main__":
    main(Path(sys.argv[1]), decode(Trial, sys.argv[2]))
