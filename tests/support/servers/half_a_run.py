"""A run that has come half the way, as the tests of file systems go on with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from faulty_mount import FaultyMount
from workload import EVEN

HALF = replace(EVEN, epochs=2)
STORE = "*/checkpoints/*"
"""All names in a store."""
Begun: TypeAlias = "Callable[[FaultyMount], Path]"
"""Puts the run onto a file system; returns its run directory there."""
