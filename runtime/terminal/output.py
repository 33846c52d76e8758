"""The console that results of commands are printed on."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_WIDE = 1000
"""Columns of a file or a pipe: nobody pages there, and what is cut or folded cannot be searched."""


def output() -> Console:
    """Return a console on stdout, as wide as the terminal; a file is wide."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(soft_wrap=True, highlight=False, width=None if is_known else _WIDE)
