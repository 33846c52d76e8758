from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What an mpiexec of `mpi_programs` is started in; it counts its starts, and has a library."""
    library = tmp_path / "libmpi.so.40"
    library.write_text("a library")
    return {
        "PATH": os.environ["PATH"],
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "COUNT": str(tmp_path / "count"),
        "LIBRARY": str(library),
    }
