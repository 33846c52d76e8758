"""Compares the files that two runs of a script wrote: by their bytes, or by their numbers."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from suite_table import Nearness

Files = Mapping[str, Path]
Numbers = dict[str, Any]
"""Numbers, strings and arrays of numbers by the place in the file."""


def files_in(directory: Path) -> Files:
    """Return every file below ``directory`` by its name there."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path for path in found}


def other_bytes(mine: Files, theirs: Files) -> Iterator[str]:
    """Yield a sentence for each file that is not the same, byte for byte."""
    yield from _other_names(mine, theirs)
    for name in sorted(mine.keys() & theirs.keys()):
        if _digest(mine[name]) != _digest(theirs[name]):
            places = list(_far_places(mine[name], theirs[name], Nearness(0, 0)))
            yield f"{name} has other bytes ({places[0] if places else 'but equal numbers'})"


def other_numbers(mine: Files, theirs: Files, nearness: Nearness) -> Iterator[str]:
    """Yield a sentence for each file whose numbers are not near those of its twin."""
    yield from _other_names(mine, theirs)
    for name in sorted(mine.keys() & theirs.keys()):
        if mine[name].suffix in nearness.files:
            places = list(_far_places(mine[name], theirs[name], nearness))
            if places:
                yield f"{name}: {places[0]}" + f" and {len(places) - 1} more" * (len(places) > 1)


def _other_names(mine: Files, theirs: Files) -> Iterator[str]:
    for name in sorted(theirs.keys() - mine.keys()):
        yield f"{name} is missing"
    for name in sorted(mine.keys() - theirs.keys()):
        yield f"{name} is one too many"


def _digest(path: Path) -> str:
    content = _weights(path) if path.suffix == ".keras" else path.read_bytes()
    return hashlib.sha256(content).hexdigest()


def _weights(path: Path) -> bytes:
    """Return the weights of a saved model; the other parts have times and addresses in them."""
    with zipfile.ZipFile(path) as parts:
        return parts.read("model.weights.h5")


def _far_places(mine: Path, theirs: Path, nearness: Nearness) -> Iterator[str]:
    """Yield each place where the numbers of two files differ by more than ``nearness``."""
    read = _READERS.get(mine.suffix)
    if read is None:
        return
    ours, others = read(mine), read(theirs)
    for place in sorted(ours.keys() ^ others.keys()):
        yield f"only one of both has {place}"
    for place in sorted(ours.keys() & others.keys()):
        if not _is_near(ours[place], others[place], nearness):
            yield f"{place} is {_short(ours[place], others[place])}"


def _is_near(mine: Any, theirs: Any, nearness: Nearness) -> bool:
    if isinstance(mine, str) or isinstance(theirs, str):
        return bool(mine == theirs)
    if np.shape(mine) != np.shape(theirs):
        return False
    return np.allclose(mine, theirs, rtol=nearness.relative, atol=nearness.absolute, equal_nan=True)


def _short(mine: Any, theirs: Any) -> str:
    if np.ndim(mine) and np.shape(mine) == np.shape(theirs):
        difference = np.abs(np.asarray(mine, float) - np.asarray(theirs, float))
        return f"off by up to {difference.max():.2g} of {np.abs(theirs).max():.2g}"
    return f"{mine}, not {theirs}"


def _json(path: Path) -> Numbers:
    return dict(_leaves("", json.loads(path.read_text(encoding="utf-8"))))


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield each number and string of nested lists and objects with its place."""
    match value:
        case dict():
            for key, inner in value.items():
                yield from _leaves(f"{place}/{key}", inner)
        case list():
            for number, inner in enumerate(value):
                yield from _leaves(f"{place}/{number}", inner)
        case None:
            yield place, math.nan
        case _:
            yield place, value


def _csv(path: Path) -> Numbers:
    """Return each cell, as a number where it is one."""
    text = path.read_text(encoding="utf-8")
    rows = csv.reader(text.splitlines(), delimiter=";" if ";" in text else ",")
    cells = ((f"{r}/{c}", cell) for r, row in enumerate(rows) for c, cell in enumerate(row))
    return {place: _number(cell) for place, cell in cells}


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell


def _npz(path: Path) -> Numbers:
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _keras(path: Path) -> Numbers:
    return _hdf5(BytesIO(_weights(path)))


def _hdf5(path: Path | BytesIO) -> Numbers:
    found: Numbers = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and node.dtype.kind in "fiub":
            found[name] = node[()]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


_READERS: dict[str, Callable[[Path], Numbers]] = {
    ".json": _json,
    ".csv": _csv,
    ".npz": _npz,
    ".h5": _hdf5,
    ".keras": _keras,
}
