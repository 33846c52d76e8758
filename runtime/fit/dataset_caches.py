"""Files of ``Dataset.cache(file)``, which every worker of a job would fill.

TensorFlow lets one pass at a time fill a cache, and keeps others away by a lock file.  Here every
worker looks at its first batch, and more than one may read a whole pass.  A reader that is killed
leaves its lock file behind.

Invariant: nobody but a script's end writes a file of the name that the script gives, and what has
that name is whole.  Until then each worker fills a cache of its own beside it.  What a dead worker
of the run has left is removed by the next launch, or gets the name if it is whole.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection
from typing import Any

from holdfast.runtime.options.worker_config import WorkerConfig

_INDEX = ".index"
"""The end of the name of the file that TensorFlow writes last."""


def share_caches(
    tensorflow: Any, config: WorkerConfig, living: Callable[[], Collection[int]]
) -> Callable[[], None]:
    """Let each worker fill caches of its own; return what is to be done when the script has ended.

    ``living`` returns the workers of the world as it was known last.
    """
    caches = Caches(tensorflow.io.gfile, config.run_id, config.worker, living)
    plain = tensorflow.data.Dataset.cache

    @functools.wraps(plain)
    def cache(dataset: Any, filename: Any = "", name: Any = None) -> Any:
        is_path = isinstance(filename, (str, bytes, os.PathLike)) and bool(filename)
        return plain(dataset, caches.place_of(filename) if is_path else filename, name)

    tensorflow.data.Dataset.cache = cache
    return caches.give_names


class Caches:
    """The caches of this worker, in files that ``files`` (TensorFlow's) reaches."""

    def __init__(
        self, files: Any, run_id: str, worker: int, living: Callable[[], Collection[int]]
    ) -> None:
        self._files = files
        self._mark = f".{run_id}-"
        self._me = worker
        self._living = living
        self._own: dict[str, str] = {}
        """The places of the caches that this worker fills, by their names."""

    def place_of(self, filename: str | bytes | os.PathLike[Any]) -> str:
        """Return where this worker reads or fills the cache of a name."""
        name = os.fsdecode(filename)
        if "://" not in name:
            name = os.path.abspath(name)  # the script may go elsewhere
        self._clear(name)
        if self._is_whole(name):
            return name
        self._own[name] = f"{name}{self._mark}{self._me}"
        return self._own[name]

    def give_names(self) -> None:
        """Give this worker's caches their names if they are whole, and remove all others."""
        for name, place in self._own.items():
            self._give_name(name, place)
            self._clear(name)

    def _clear(self, name: str) -> None:
        """Give a cache of a dead worker its name if it is whole, and remove what is not."""
        folder, base = os.path.split(name)
        if not self._files.isdir(folder):
            return
        places, living = set(), frozenset(map(str, self._living()))
        for file in self._files.listdir(folder):
            begin, _, rest = file.partition(self._mark)
            worker = _digits(rest)
            if begin == base and worker and worker not in living:
                places.add(f"{name}{self._mark}{worker}")
        for place in sorted(places):
            self._give_name(name, place)

    def _give_name(self, name: str, place: str) -> None:
        folder, base = os.path.split(place)
        files = [found for found in self._files.listdir(folder) if _is_of(found, base)]
        gets_name = self._is_whole(place) and not self._is_whole(name)
        for file in sorted(files):  # the index, which makes it whole, comes after the data
            end = file.removeprefix(base)
            try:
                if gets_name and not end.startswith("_"):
                    self._files.rename(f"{place}{end}", f"{name}{end}", overwrite=True)
                else:
                    self._files.remove(f"{place}{end}")
            except Exception:  # another worker was faster, or the disk refuses
                continue

    def _is_whole(self, place: str) -> bool:
        return bool(self._files.exists(place + _INDEX))


def _digits(text: str) -> str:
    """Return the digits that a text begins with."""
    return text[: len(text) - len(text.lstrip("0123456789"))]


def _is_of(file: str, base: str) -> bool:
    """Return whether a file is one of the cache ``base``, not of one with a longer number."""
    rest = file.removeprefix(base)
    return rest != file and not rest[:1].isdigit()
