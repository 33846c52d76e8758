"""Ways in which files are damaged: bits, blocks, lengths, names, and files of others."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from job import WRITERS

from holdfast.checkpoint.names import MANIFEST_NAME, shard_name, step_name

OLD, NEW = 100, 200
"""The steps of which files are damaged."""
_BLOCK_BYTES = 4096
Files: TypeAlias = dict[str, bytes]
"""The files of a folder by their paths in it."""
Damage: TypeAlias = Callable[[Files, random.Random, Files], None]
"""Changes files; the last ones are those of another run."""


def read_files(folder: Path) -> Files:
    """Return all files below a folder."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def write_files(folder: Path, files: Files) -> None:
    """Write files below a folder."""
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def strike(
    files: Files, choose: random.Random, foreign: Files, ways: tuple[Damage, ...]
) -> list[str]:
    """Damage files once, or now and then more often; return how."""
    names = []
    for _ in range(choose.choice((1, 1, 1, 1, 2, 3))):
        damage = choose.choice(ways)
        damage(files, choose, foreign)
        names.append(damage.__name__)
    return names


def flip_bit(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Flip one bit."""
    path = _any_file(files, choose)
    data = bytearray(files[path])
    if data:
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    files[path] = bytes(data)


def truncate(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Cut a file short."""
    path = _any_file(files, choose)
    files[path] = files[path][: choose.randrange(len(files[path]) + 1)]


def zero_block(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Replace a block by zeros."""
    path = _any_file(files, choose)
    data = bytearray(files[path])
    start = choose.randrange(0, len(data) + 1, _BLOCK_BYTES)
    block = data[start : start + _BLOCK_BYTES]
    data[start : start + len(block)] = bytes(len(block))
    files[path] = bytes(data)


def extend(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Append zeros or noise."""
    path = _any_file(files, choose)
    files[path] += choose.choice((bytes, choose.randbytes))(choose.randint(1, 2 * _BLOCK_BYTES))


def swap(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Exchange the contents of two files."""
    first, second = _any_file(files, choose), _any_file(files, choose)
    files[first], files[second] = files[second], files[first]


def duplicate(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Put a file's contents onto another one, or beside it under a name of its own."""
    source = files[_any_file(files, choose)]
    path = _any_file(files, choose)
    files[choose.choice((path, f"{path}.copy", _other_shard_name(path, choose)))] = source


def rename(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Give a file a name that another shard or none has."""
    path = _any_file(files, choose)
    files[_other_shard_name(path, choose)] = files.pop(path)


def remove(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Remove a file."""
    if len(files) > 1:
        del files[_any_file(files, choose)]


def take_from_other_step(files: Files, choose: random.Random, _foreign: Files) -> None:
    """Put the other step's file of the same name there."""
    path = _any_file(files, choose)
    folder, name = path.split("/")
    other = step_name(OLD if folder == step_name(NEW) else NEW)
    files[path] = files.get(f"{other}/{name}", b"")


def take_from_other_run(files: Files, choose: random.Random, foreign: Files) -> None:
    """Put another run's file of the same name there."""
    path = _any_file(files, choose)
    files[path] = foreign.get(path, b"")


def take_whole_step(files: Files, choose: random.Random, foreign: Files) -> None:
    """Put a whole step of another run, or of another number, where a step was."""
    source, origin = choose.choice(((foreign, NEW), (foreign, OLD), (dict(files), OLD)))
    target = step_name(choose.choice((NEW, NEW + 100)))
    for path in [path for path in files if path.startswith(target)]:
        del files[path]
    for path, data in source.items():
        if path.startswith(step_name(origin)):
            files[f"{target}/{path.split('/')[1]}"] = data


OF_STEPS: tuple[Damage, ...] = (
    *(flip_bit, flip_bit, flip_bit, truncate, zero_block, zero_block, extend, swap, duplicate),
    *(rename, remove, take_from_other_step, take_from_other_run, take_whole_step),
)
OF_ANY_FILES: tuple[Damage, ...] = (
    *(flip_bit, flip_bit, flip_bit, truncate, zero_block, extend, swap, remove),
    take_from_other_run,
)
"""Those that do not look at the names."""


def _any_file(files: Files, choose: random.Random) -> str:
    """Choose a file, mostly of the newest step, as often a manifest as any one shard."""
    newest = [path for path in files if path.startswith(step_name(NEW))]
    return choose.choice(newest if newest and choose.random() < 0.8 else sorted(files))


def _other_shard_name(path: str, choose: random.Random) -> str:
    folder = path.split("/", maxsplit=1)[0]
    names = [shard_name(choose.randrange(6), choose.choice((WRITERS, 4))), MANIFEST_NAME, "x.h5"]
    return f"{folder}/{choose.choice(names)}"
