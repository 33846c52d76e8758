"""An agent that is started before its job is known, and waits for it.

To start Python twice, for agent and pool, takes a third of the time before TensorFlow's import
begins.  The command needs about as long to find out what the job is: whether its files are
there, and whose the run directory is.  So both are done at the same time.

The agent gets its arguments, its environment and the lease in one message.  If its starter
closes the socket instead, there is no job, and the agent ends before it has done anything.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from holdfast.runtime.system.channel import FDS, Channel, pair
from holdfast.runtime.system.helper_process import module_command
from holdfast.runtime.system.own_process import take_environment
from holdfast.runtime.system.signals import blocked

EARLY = "--early"
"""Comes first in the arguments of such an agent, before the descriptor of its socket."""

HASHES: Mapping[str, str] = {"PYTHONHASHSEED": "0"}
"""Scripts make vocabularies from sets of words, in the order of their hashes.

Python reads it when it starts, so it is settled before anything else.  The user's own counts."""


class EarlyAgent:
    """An agent that waits for its job; it ends with the ``with`` block unless it has got one."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel) -> None:
        self._process = process
        self._channel = channel
        self._is_told = False

    def __enter__(self) -> EarlyAgent:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End an agent without a job."""
        self.dismiss()

    @staticmethod
    def begin() -> EarlyAgent:
        """Start an agent, in a session of its own.

        Raises:
            OSError: the system has no process or descriptor to spare; nothing is left open.
        """
        ours, theirs = pair()
        fd = theirs.fileno()
        try:
            with blocked():  # until it has handlers of its own
                process = subprocess.Popen(
                    [*module_command("holdfast.runtime.agent"), EARLY, str(fd)],
                    env={**HASHES, **os.environ},
                    stdin=subprocess.DEVNULL,
                    pass_fds=(fd,),
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return EarlyAgent(process, ours)

    def tell(
        self, arguments: Sequence[str], environment: Mapping[str, str], lease: int
    ) -> subprocess.Popen[bytes] | None:
        """Give it its job; return the agent, None if it takes none and was ended.

        ``lease`` is a descriptor that it keeps open.
        """
        message = {"arguments": list(arguments), "environment": dict(environment)}
        self._channel.post(message, (lease,))
        self._is_told = not self._channel.wants_write
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


def receive_arguments(fd: int) -> list[str] | None:
    """Wait, in the agent, for its arguments, and take the environment over.

    None if there is no job.
    """
    starter = Channel.adopt(fd)
    message = starter.receive()
    starter.close()
    if message is None:
        return None
    take_environment(message["environment"])
    (lease,) = message[FDS]
    return [*message["arguments"], "--lease-fd", str(lease)]
