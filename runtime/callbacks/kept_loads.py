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
        lasting_name: returns how later launches know a path, which is another name for a file in
            a temporary directory.  Such a file is copied at once: it may be gone with its job.
    """

    def __init__(
        self,
        folder: Path,
        tell: Callable[[str], None],
        lasting_name: Callable[[str], str] = lambda path: path,
    ) -> None:
        self._folder = folder
        self._tell = tell
        self._lasting_name = lasting_name
        self._loads = 0
        self._loaded: dict[str, list[Path]] = {}

    def load(self, absolute: str) -> str:
        """Return what the script's next load of a file is to read."""
        self._loads += 1
        name = self._lasting_name(absolute)
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        copy = self._folder / f"{self._loads}-{digest}-{os.path.basename(absolute)}"
        if not copy.exists():
            self._loaded.setdefault(absolute, []).append(copy)
            if name != absolute:
                self.before_write(absolute)
            return absolute
        if name == absolute:
            self._tell(
                f"the script gets {absolute} as it was when this run loaded it first, because the "
                f"run has written it since: {copy}"
            )
        return str(copy)

    def before_removal(self, absolute: str) -> None:
        """Keep a file, or all files of a directory, for the loads that have read them."""
        below = os.path.join(absolute, "")
        for path in list(self._loaded):
            if path == absolute or path.startswith(below):
                self.before_write(path)

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
