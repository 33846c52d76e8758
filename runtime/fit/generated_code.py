"""Python code that TensorFlow generates, without a file that stays behind.

TensorFlow writes each function that it has translated into a file for temporary files, and
removes it when the process ends.  A worker that is killed ends without that.  So the file
is removed as soon as it was loaded, and its lines stay where Python looks for source code.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
from typing import Any

_LOADER = "tensorflow.python.autograph.pyct.loader"


def keep_in_memory() -> None:
    """Let TensorFlow, which is imported, leave no file of generated code from now on."""
    loader = sys.modules.get(_LOADER)
    if loader is None:
        return  # another release of TensorFlow; then the files stay until the process ends
    load = loader.load_source

    @functools.wraps(load)
    def load_source(source: str, *args: Any, **arguments: Any) -> Any:
        module, path = load(source, *args, **arguments)
        _keep(path, source)
        return module, path

    loader.load_source = load_source  # type: ignore[attr-defined]


def _keep(path: str, source: str) -> None:
    """Remove a file, and keep its lines; those without a time of change are never looked up."""
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    os.unlink(path)
