"""What a file system does not guarantee, told once: the checkpoints on it are worth less."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint.disk.disk import Disk


class Downgrades:
    """Remembers what was told; ``tell`` is called with one sentence each."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: set[str] = set()

    def look(self, disk: Disk) -> None:
        """Tell what ``disk`` has found since it was looked at last."""
        for downgrade in disk.downgrades:
            if downgrade not in self._told:
                self._told.add(downgrade)
                self._tell(downgrade)
