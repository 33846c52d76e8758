"""Where a tensor appears inside a shard: the way from its name to an HDF5 path.

The slashes of a name make groups.  Components that HDF5 would read differently are
percent-encoded, so that different names never share a path:

* ``%`` and NUL become ``%25`` and ``%00``;
* the components ``.`` and ``..``, and others of dots only, become ``%2E`` each dot;
* an empty component becomes a single ``%``;
* where one name continues another (``a`` and ``a/b``), the shorter one ends in
  an extra ``%``, because a dataset cannot also be a group.

Only people use these paths.  A restore goes by the manifest alone.
"""

from __future__ import annotations

from collections.abc import Iterable


def dataset_paths(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the HDF5 path of each name, as the components from the root."""
    paths = {name: tuple(map(_encode, name.split("/"))) for name in names}
    groups = {path[:depth] for path in paths.values() for depth in range(1, len(path))}
    return {
        name: (*path[:-1], path[-1] + "%") if path in groups else path
        for name, path in paths.items()
    }


def _encode(component: str) -> str:
    if not component:
        return "%"
    if set(component) == {"."}:
        return "%2E" * len(component)
    return component.replace("%", "%25").replace("\0", "%00")
