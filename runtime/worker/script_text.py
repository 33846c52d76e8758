"""The digest of a script: its text, that of the modules of its own, and its arguments."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.format.digest import Digest
from holdfast.runtime.evidence.stacks import Frame

_LARGEST = 16 << 20


def script_digest(script: Path, argv: Sequence[str]) -> str:
    """Return the digest; modules that are imported later have no part in it."""
    digest = Digest()
    digest.update(repr(tuple(argv)).encode())
    for file in sorted({str(script.resolve()), *_own_files()}):
        try:
            path = Path(file)
            text = path.read_bytes() if path.stat().st_size <= _LARGEST else b""
        except OSError:
            continue
        digest.update(path.name.encode() + b"\0" + text)
    return digest.hexdigest()


def _own_files() -> set[str]:
    """Return the files of all imported modules that are neither a library's nor holdfast's."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file for file in files if isinstance(file, str) and _is_users(file)}


@functools.cache
def _is_users(file: str) -> bool:
    return Frame(file, "", "").is_users
