"""The events of a launch, as few as another supervisor needs to go on from there.

The job's machine looks at the newest world and checkpoint only, and at one report of each
kind from each worker.  So older ones are forgotten, and the log of a launch that runs for
months stays as small as that of its first minute.
"""

from __future__ import annotations

from holdfast.runtime.system.channel import Message

_OF_A_WORKER = frozenset({"worker_started", "worker_exited"})
_REPORTS = frozenset({"joined", "world", "checkpoint", "error", "complete", "stopped"})


class LaunchLog:
    """The newest launch message, and what it has come to so far."""

    def __init__(self) -> None:
        self.launch: Message | None = None
        self._events: dict[tuple[object, ...], Message] = {}

    def begin(self, launch: Message) -> None:
        """Forget the last launch; ``launch`` is the message that announced this one."""
        self.launch = launch
        self._events.clear()

    def note(self, event: Message) -> None:
        """Keep ``event`` if a supervisor decides by it, in place of an older one of its kind."""
        key = _key_of(event)
        if key is not None:
            self._events.pop(key, None)
            self._events[key] = event

    @property
    def summary(self) -> Message | None:
        """The launch as people know it, None before the first one."""
        if self.launch is None:
            return None
        config = self.launch["config"]
        return {
            "script": config["options"]["script"],
            "generation": config["generation"],
            "workers": config["workers"],
            "relaunch": self.launch.get("relaunch", 0),
        }

    @property
    def events(self) -> tuple[Message, ...]:
        """The kept events, the newest last."""
        return tuple(self._events.values())


def _key_of(event: Message) -> tuple[object, ...] | None:
    kind = event["kind"]
    if kind in _OF_A_WORKER:
        return (kind, event["worker"])
    if kind in ("launch_ended", "renewing"):
        return (kind,)
    if kind != "worker_report" or event["report"].get("kind") not in _REPORTS:
        return None
    report = event["report"]["kind"]
    return (report,) if report == "checkpoint" else (report, event["worker"])
