"""The head's handle on the copier: starts it, tells it what was saved, and ends it in time.

Nobody waits for the copier but the end of the job, and that only as long as copies move.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from holdfast.recovery.event import Event
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.checkpoint_events import CopiesTold
from holdfast.runtime.run.events import Notice
from holdfast.runtime.saving.save_messages import (
    CopyMoves,
    CopyRun,
    EndCopies,
    LookAgain,
    OfCopier,
    PlanSaves,
    ToCopier,
)
from holdfast.runtime.system.channel import Channel, Message, MessageKinds, pair, to_message
from holdfast.runtime.system.own_process import by_env, has_ended, module_command
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import blocked

MOVES_WITHIN_S = 40.0
"""The end of a job waits no longer for copies that do not move; the copier gives up before."""
_HURRIED_S = 5.0
"""The same where a batch system waits to end the job, which must be requeued before."""
_SAYS_AFTER_S = 2.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_KILLED_WITHIN_S = 5.0
_MESSAGES: MessageKinds[OfCopier] = MessageKinds(OfCopier)


class CopierLink:
    """The copier of one job; without ``--copy-to`` there is none, and all calls do nothing."""

    def __init__(
        self,
        reactor: Reactor,
        config: WorkerConfig,
        tell: Callable[[Event], None],
        moves_within_s: float = MOVES_WITHIN_S,
    ) -> None:
        """Begin with the next ``poll``; ``tell`` gets what happens."""
        self._reactor = reactor
        self._config = config
        self._tell = tell
        self._moves_within_s = moves_within_s
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._plan: PlanSaves | None = None
        self._next_at, self._pause_s = 0.0, _FIRST_PAUSE_S
        self._now = self._moved_at = 0.0
        self._ending_at: float | None = None
        self._has_said = False
        self._is_over = config.options.copy_to is None

    def plan(self, message: PlanSaves) -> None:
        """Tell the plan of the saves that come, which has the retention."""
        is_known = self._plan is not None and self._plan.plan == message.plan
        if not self._is_over and not is_known:
            self._plan = message
            self._post(message)

    def saved(self, step: int) -> None:
        """Tell that a step was committed."""
        self._post(LookAgain(step))

    def poll(self, now: float) -> None:
        """Start a copier if there is none; one that dies at once, seldom."""
        self._now = now
        if self._is_over or self._channel is not None or now < self._next_at:
            return
        self._next_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self._start()

    def has_ended(self, now: float, *, is_hurried: bool) -> bool:
        """Let the copier end once it has copied what is left; return whether that is over.

        A job that ``is_hurried`` goes on later, and has no time for that now.
        """
        self._now = now
        if self._ending_at is None:
            self._ending_at = self._moved_at = now
            if self._channel is None and not self._is_over:
                self._start()
            self._post(EndCopies())
        if self._channel is None:
            self._is_over = True
        elif is_hurried and now - self._ending_at > _HURRIED_S:
            self._lack("the time of the job is up, and the next one makes them")
        elif now - self._moved_at > self._moves_within_s:
            self._lack(f"nothing has moved for {self._moves_within_s:.0f} s, and the job is over")
        elif now - self._ending_at > _SAYS_AFTER_S and not self._has_said:
            self._has_said = True
            text = f"copying what is left to {self._config.options.copy_to}"
            self._tell(Notice(f"{text}; a signal (Ctrl-C) ends that", is_progress=True))
        return self._is_over

    def _lack(self, why: str) -> None:
        self._tell(CopiesTold(self._config.options.copy_to or "", why))
        self.give_up()

    def give_up(self) -> None:
        """End the copier now; a copy that is cut short is no step there."""
        self._is_over = True
        if self._process is not None:
            self._process.kill()
        self._leave()

    def _start(self) -> None:
        """Start a copier, unless there is nothing to spare for one: it is tried again."""
        try:
            ours, theirs = pair()
        except OSError:
            return
        words = str(theirs.fileno()), str(os.getpid())
        command = by_env(module_command("holdfast.runtime.saving.copier", *words))
        inherited = [theirs.fileno()]
        try:
            with blocked():
                self._process = subprocess.Popen(
                    command, pass_fds=inherited, stdin=subprocess.DEVNULL
                )
        except OSError:
            ours.close()
            return
        finally:
            theirs.close()
        self._channel = ours
        self._reactor.watch_channel(ours, self._on_message, self._on_end)
        self._post(CopyRun(self._config))
        if self._plan is not None:
            self._post(self._plan)

    def _post(self, message: ToCopier) -> None:
        if self._channel is not None:
            self._channel.post(to_message(message))

    def _on_message(self, line: Message) -> None:
        self._moved_at, self._pause_s = self._now, _FIRST_PAUSE_S
        message = _MESSAGES.decode(line)
        if not isinstance(message, CopyMoves):
            self._tell(message)

    def _on_end(self) -> None:
        """Take note that the copier is gone; the next poll starts another one."""
        self._is_over |= self._ending_at is not None
        self._leave()

    def _leave(self) -> None:
        if self._channel is not None:
            self._reactor.forget(self._channel)
            self._channel.close()
        if self._process is not None:
            has_ended(self._process, _KILLED_WITHIN_S)
        self._channel = self._process = None
