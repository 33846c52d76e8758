"""An agent that is started before its job is known, and waits for it.

To start Python twice, for agent and pool, takes a third of the time before TensorFlow's import
begins.  The command needs about as long to find out what the job is: whether its files are
there, and whose the run directory is.  So both are done at the same time.

It begins in the environment that the job will most likely have.  What a process has read at
its start cannot be changed, so a job with another environment takes no such agent.  It gets its
arguments and the lease in one message.  If its starter ends or closes the socket instead, there
is no job, and the agent ends before it has done anything.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from holdfast.runtime.system.channel import FDS, Channel, pair
from holdfast.runtime.system.own_process import module_command, outlive_parent
from holdfast.runtime.system.signals import SENT_BY_BATCH_SYSTEMS, blocked

EARLY = "--early"
"""Comes first in the arguments of such an agent, before its socket's descriptor and its starter."""


class EarlyAgent:
    """An agent that waits for its job; it ends with the ``with`` block unless it has got one."""

    def __init__(
        self, process: subprocess.Popen[bytes], channel: Channel, environment: Mapping[str, str]
    ) -> None:
        self._process = process
        self._channel = channel
        self._environment = environment
        self._is_told = False

    def __enter__(self) -> EarlyAgent:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End an agent without a job."""
        self.dismiss()

    @staticmethod
    def begin(environment: Mapping[str, str]) -> EarlyAgent:
        """Start an agent, in a session of its own.

        Raises:
            OSError: the system has no process or descriptor to spare; nothing is left open.
        """
        ours, theirs = pair()
        fd = theirs.fileno()
        words = (EARLY, str(fd), str(os.getpid()))
        try:
            with blocked():  # until it has handlers of its own
                process = subprocess.Popen(
                    module_command("holdfast.runtime.host", *words),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(fd,),
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return EarlyAgent(process, ours, environment)

    def tell(
        self, arguments: Sequence[str], environment: Mapping[str, str], lease: int
    ) -> subprocess.Popen[bytes] | None:
        """Give it its job; return the agent, None if it was ended: it suits or takes no such job.

        ``lease`` is a descriptor that it keeps open.
        """
        if environment == self._environment:
            self._channel.post({"arguments": list(arguments)}, (lease,))
            self._is_told = not (self._channel.wants_write or self._channel.is_deaf)
        if self._is_told:
            self._channel.close()
            return self._process
        self.dismiss()
        return None

    def dismiss(self) -> None:
        """End an agent without a job; its pool ends with it."""
        if not self._is_told:
            self._channel.close()
            self._process.kill()
            self._process.wait()


def await_job(fd: int) -> list[str] | None:
    """Wait, in the agent, for its arguments; None if there is no job.

    From then on it outlives its starter.  Signals that came before were no orders to a job.
    """
    channel = Channel.adopt(fd)
    message = channel.receive()
    channel.close()
    if message is None:
        return None
    outlive_parent()
    while signal.sigtimedwait(SENT_BY_BATCH_SYSTEMS, 0):
        pass
    (lease,) = message[FDS]
    return [*message["arguments"], "--lease-fd", str(lease)]
