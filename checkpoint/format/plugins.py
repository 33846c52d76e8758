"""HDF5's plugins: shared libraries that it loads from a path in the environment.

A shard has no filters, so it needs no plugin.  A plugin that is never loaded cannot run
foreign code.  HDF5 looks at the environment once, when it is loaded: if the script has
imported h5py before, the script's setting stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_PRELOAD, _NO_PLUGINS = "HDF5_PLUGIN_PRELOAD", "::"  # H5PL_NO_PLUGIN of H5PLpublic.h


@contextlib.contextmanager
def no_plugins() -> Iterator[None]:
    """Forbid plugins to an HDF5 that is loaded meanwhile; child processes inherit nothing."""
    before = os.environ.get(_PRELOAD)
    os.environ[_PRELOAD] = _NO_PLUGINS
    try:
        yield
    finally:
        if before is None:
            del os.environ[_PRELOAD]
        else:
            os.environ[_PRELOAD] = before
