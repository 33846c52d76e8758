"""A file system that remembers what was opened in it."""

from __future__ import annotations

from pathlib import Path

from holdfast.checkpoint.filesystem import FileSystem


class Recording(FileSystem):
    """Remembers the names of the files that were opened."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.opened: set[str] = set()

    def open_read(self, path: Path) -> int:
        self.opened.add(path.name)
        return super().open_read(path)
