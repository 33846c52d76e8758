"""Models that the script has loaded, as they were then, once the run writes their files again.

A script may load the best weights of one ``fit``, and let the next one save its own to the same
file.  A relaunch in that one runs the script from its first line: it would load what the next
``fit`` has written.  So the first worker copies a file that the script has loaded, before the run
writes it again.  The same load of a later launch gets the copy.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path


class KeptLoads:
    """The loads of one worker's script, counted alike on all workers.

    Args:
        folder: where copies are kept; made at the first need.
        tell: says a line to the user.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._loads = 0
        self._loaded: dict[str, list[Path]] = {}

    def load(self, absolute: str) -> str:
        """Return what the script's next load of a file is to read."""
        self._loads += 1
        digest = hashlib.sha256(absolute.encode()).hexdigest()[:8]
        copy = self._folder / f"{self._loads}-{digest}-{os.path.basename(absolute)}"
        if not copy.exists():
            self._loaded.setdefault(absolute, []).append(copy)
            return absolute
        self._tell(
            f"the script gets {absolute} as it was when this run loaded it first, because the run "
            f"has written it since: {copy}"
        )
        return str(copy)

    def before_write(self, absolute: str) -> None:
        """Keep the file as it is for the loads that have read it, if there were any."""
        copies = self._loaded.pop(absolute, [])
        if not os.path.isfile(absolute):
            return
        for copy in copies:
            copy.parent.mkdir(exist_ok=True)
            beside = copy.with_name(f".{copy.name}.{os.getpid()}")
            shutil.copyfile(absolute, beside)
            os.replace(beside, copy)
