"""The supervisor that owns a run directory, found by its lease and safe to signal.

The lease names host and process, but processes end and their numbers are used again.  So
a named process counts only if it has that very lease file open.  Signals go through a
descriptor of the process (pidfd), opened *before* that check.  If the number has changed
hands meanwhile, the signal reaches no process.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from holdfast.runtime.errors import JobError, NotSaved, UsageError
from holdfast.runtime.run.copies import moved_to
from holdfast.runtime.run.lease import has_ended
from holdfast.runtime.run.own_file import ForeignFile
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import connect
from holdfast.runtime.system.held_process import HeldProcess
from holdfast.runtime.system.process_status import is_stopped, signal_state
from holdfast.runtime.system.signals import SAVE_SIGNAL


class Life(Enum):
    """What is left of the job that owns a run directory, or owned it last."""

    SUPERVISED = "supervised"
    ORPHANED = "orphaned"
    """Its agent lives without its supervisor."""
    ELSEWHERE = "elsewhere"
    """Its run is in another directory: this one was moved or copied."""
    ENDED = "ended"
    """It has said its end in the lease."""
    GONE = "gone"
    ALONE = "alone"
    """A script that was started without a supervisor."""
    UNKNOWN = "unknown"
    """It belongs to another host or user, or to ranks that have lost the first one."""


def life_of(directory: RunDirectory) -> Life:
    """Return what is left of the job in ``directory``."""
    return find_life(directory)[0]


def find_life(directory: RunDirectory) -> tuple[Life, str]:
    """Return what is left of the job in ``directory``, and why no supervisor can be asked."""
    try:
        LeaseHolder.find(directory).close()
    except Orphaned as error:
        return Life.ORPHANED, str(error)
    except TakesNoOrders as error:
        return Life.ALONE, str(error)
    except WorksElsewhere as error:
        return Life.ELSEWHERE, str(error)
    except NotHeld as error:
        return Life.ENDED if _has_ended(directory) else Life.GONE, str(error)
    except JobError as error:
        return Life.UNKNOWN, str(error)
    return Life.SUPERVISED, ""


class NotHeld(NotSaved):
    """No process of a job holds the directory."""


class WorksElsewhere(NotSaved):
    """The run of the job that the lease names is in another directory."""


class TakesNoOrders(NotSaved):
    """A script without a supervisor holds the directory."""


class Orphaned(NotSaved):
    """The job in the directory lives without its supervisor."""


class LeaseHolder:
    """A living supervisor; a context manager that lets go of it."""

    def __init__(self, process: HeldProcess) -> None:
        self._process = process

    @staticmethod
    def find(directory: RunDirectory) -> LeaseHolder:
        """Return the supervisor that owns ``directory``.

        Raises:
            NotSaved: no supervisor runs, or it is out of reach; the message says which.
            UsageError: the lease is not the run's own file.
        """
        host, pid, takes_orders = _owner_of(directory)
        here = os.uname().nodename
        if host != here:
            raise NotSaved(f"{directory.path} belongs to host {host}, this is {here}; ask there")
        with contextlib.suppress(ProcessLookupError):
            holder = LeaseHolder(HeldProcess(pid))
            if holder._holds(directory.lease_path):
                if takes_orders:
                    return holder
                holder.close()
                raise TakesNoOrders(_NO_ORDERS.format(directory.path, pid))
            elsewhere = holder._elsewhere(directory)
            holder.close()
            if elsewhere is not None:
                raise WorksElsewhere(_ELSEWHERE.format(directory.path, pid, elsewhere))
        place = moved_to(directory)
        if place is not None:
            raise WorksElsewhere(_MOVED.format(directory.path, place))
        if _has_agent(directory):
            raise Orphaned(_ORPHANED.format(directory.path, shlex.quote(str(directory.path))))
        is_known = takes_orders or _has_ended(directory)  # as by `holdfast repair`
        raise (NotHeld if is_known else NotSaved)(_NOBODY.format(directory.path))

    @property
    def is_listening(self) -> bool:
        """Whether the holder has set up its signals: before that, an order would end it."""
        return signal_state(self._process.pid, SAVE_SIGNAL).is_caught

    @property
    def stopped_pid(self) -> int | None:
        """The holder's process id, if it is stopped."""
        return self._process.pid if is_stopped(self._process.pid) else None

    def ask_to_save(self) -> None:
        """Send the signal that asks for a checkpoint; a dead holder gets no signal."""
        self._process.signal(SAVE_SIGNAL)

    def has_ended(self, within_s: float) -> bool:
        """Wait up to ``within_s`` for the holder's end; return whether it has ended."""
        return self._process.has_ended(within_s)

    def close(self) -> None:
        """Let go of the process."""
        self._process.close()

    def __enter__(self) -> LeaseHolder:
        """Return the holder."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Let go of the process."""
        self.close()

    def _holds(self, lease_path: Path) -> bool:
        """Return whether the process has the lease file open."""
        try:
            lease = lease_path.stat()
            for link in self._open_files():
                with contextlib.suppress(OSError):
                    if os.path.samestat(link.stat(), lease):
                        return True
        except PermissionError as error:
            raise NotSaved(
                f"process {self._process.pid} belongs to another user; ask as that user"
            ) from error
        except OSError:  # it has ended meanwhile
            return False
        return False

    def _elsewhere(self, directory: RunDirectory) -> Path | None:
        """Return the directory that the process holds by the same lease, None if there is none."""
        token = directory.lease_token()
        with contextlib.suppress(OSError):
            for link in self._open_files():
                with contextlib.suppress(OSError, UsageError):
                    path = link.readlink()
                    is_lease = bool(token) and path.name == directory.lease_path.name
                    if is_lease and RunDirectory(path.parent).lease_token() == token:
                        return path.parent
        return None

    def _open_files(self) -> Iterator[Path]:
        return Path(f"/proc/{self._process.pid}/fd").iterdir()


_NO_ORDERS = "{} belongs to pid {}, which takes no orders; only a job of `holdfast run` does"
_NOBODY = "no supervisor runs in {}; start the job with `holdfast run`"

_ELSEWHERE = "{} was moved or copied, and its job (pid {}) works in {}; ask there"
_MOVED = "{} was moved or copied from {}, which holds its run as well; ask there"
_ORPHANED = (
    "the job in {} lives, but its supervisor is gone; take it over with `holdfast attach {}`, "
    "then ask again"
)


def _has_agent(directory: RunDirectory) -> bool:
    """Return whether the agent that the lease names listens; asking it changes nothing."""
    socket = directory.agent_socket()
    with contextlib.suppress(OSError):
        if socket is not None:
            connect(socket).close()
            return True
    return False


def _has_ended(directory: RunDirectory) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return has_ended(directory.lease_owner())
    return False


def _owner_of(directory: RunDirectory) -> tuple[str, int, bool]:
    try:
        owner = directory.lease_owner()
        return str(owner["host"]), int(owner["pid"]), owner.get("takes_orders") is not False
    except ForeignFile as error:
        raise UsageError(str(error)) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotSaved(_NOBODY.format(directory.path)) from error
