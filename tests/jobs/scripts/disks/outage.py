"""The custom replica of the examples, on a file system that fails while a file is there.

The file holds the ranks that cannot open a checkpoint meanwhile.
"""

from __future__ import annotations

import argparse
import errno
import os
import runpy
import sys
from pathlib import Path

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.runtime.training.restoring import PATIENT

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "02_custom_replica.py"
RANK = os.environ.get("OMPI_COMM_WORLD_RANK", "0")

parser = argparse.ArgumentParser()
parser.add_argument("--outage", type=Path, required=True)
parser.add_argument("--patience", type=float, required=True)
options, sys.argv[1:] = parser.parse_known_args()
plain = FileSystem.open_read


def open_read(files: FileSystem, path: Path) -> int:
    """Open a file, unless there is an outage."""
    try:
        is_struck = RANK in options.outage.read_text().split()
    except FileNotFoundError:
        is_struck = False
    if is_struck:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    return plain(files, path)


FileSystem.open_read = open_read  # type: ignore[method-assign]
object.__setattr__(PATIENT, "whole_s", options.patience)
object.__setattr__(PATIENT, "longest_nap_s", 0.5)
runpy.run_path(str(EXAMPLE), run_name="__main__")
