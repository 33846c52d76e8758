"""The index of a TFRecord file: where each record begins.

A record is its length (8 bytes), a checksum of the length (4), the content, and a checksum of
the content (4).  A scan reads the lengths only.  The checksums are CRC-32C, turned and shifted
by a constant, so that the checksum of a text with checksums in it is no simple number.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from holdfast.runtime.errors import ProgramError

ENDING = ".index"
_HEAD = struct.Struct("<QI")
_FRAME_BYTES = _HEAD.size + 4
_POLYNOMIAL = 0x82F63B78
_SHIFT = 0xA282EAD8
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda")

Offsets = npt.NDArray[np.int64]


def offsets_of(path: str | os.PathLike[str], index_dir: str | os.PathLike[str] | None) -> Offsets:
    """Return where each record of a TFRecord file begins, and the length of the file.

    The index is read from ``index_dir``, or from beside the file.  If it is not there, or not
    that of the file as it is now, the file is scanned and the index is written.  Where nothing
    can be written, each start scans the file.

    Raises:
        ProgramError: it is no TFRecord file, it is compressed, or its end is missing.
    """
    file = Path(path)
    place = (file.parent if index_dir is None else Path(index_dir)) / (file.name + ENDING)
    try:
        state = file.stat()
        stamp = {"bytes": state.st_size, "modified_ns": state.st_mtime_ns}
        known = _stored(place, stamp)
        if known is not None:
            return known
        found = _scanned(file)
    except OSError as error:
        raise ProgramError(f"{file} cannot be read: {error}") from error
    with contextlib.suppress(OSError):
        _store(place, stamp, found)
    return found


def _stored(place: Path, stamp: dict[str, int]) -> Offsets | None:
    """Return the offsets of an index that is whole, and that of a file with this stamp."""
    try:
        head, _, content = place.read_bytes().partition(b"\n")
        described = json.loads(head)
    except (OSError, ValueError):
        return None
    if described != stamp | {"crc32": zlib.crc32(content)} or len(content) % 8:
        return None
    return np.frombuffer(content, "<i8")


def _store(place: Path, stamp: dict[str, int], offsets: Offsets) -> None:
    """Write the index; several workers may do so at once, and each writes the same."""
    content = offsets.astype("<i8").tobytes()
    head = json.dumps(stamp | {"crc32": zlib.crc32(content)}).encode()
    place.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(head + b"\n" + content)
        os.chmod(name, 0o644)
        os.replace(name, place)
    except OSError:
        os.unlink(name)
        raise


def _scanned(file: Path) -> Offsets:
    size = file.stat().st_size
    if not size:
        raise ProgramError(f"{file} is empty: it holds no records")
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:2] in _COMPRESSED and not _is_head(data[: _HEAD.size]):
            raise ProgramError(
                f"{file} is compressed, so a record in it cannot be read alone: write it without "
                "compression, or give a tf.data.TFRecordDataset to fit"
            )
        starts, lengths, sums = [0], [], []
        while starts[-1] + _FRAME_BYTES <= size:
            length, check = _HEAD.unpack_from(data, starts[-1])
            lengths.append(length)
            sums.append(check)
            starts.append(starts[-1] + _FRAME_BYTES + length)
    good = _masked_crc32c(np.array(lengths, np.uint64)) == np.array(sums, np.uint32)
    if not good.all() or starts[-1] != size:
        whole = len(lengths) - (starts[-1] > size)
        number = whole if good.all() else int(np.argmin(good))
        raise ProgramError(
            f"{file} is no whole TFRecord file: record {number + 1}, which begins at byte "
            f"{starts[number]}, is cut or damaged; write the file again"
        )
    return np.array(starts, np.int64)


def _is_head(head: bytes) -> bool:
    if len(head) < _HEAD.size:
        return False
    length, check = _HEAD.unpack(head)
    return bool(_masked_crc32c(np.array([length], np.uint64))[0] == check)


def _masked_crc32c(lengths: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Return the checksums that TFRecord gives to these lengths."""
    table = _table()
    crc = np.full(len(lengths), 0xFFFFFFFF, np.uint32)
    for column in lengths.astype("<u8").view(np.uint8).reshape(-1, 8).T:
        crc = (crc >> np.uint32(8)) ^ table[(crc ^ column) & np.uint32(0xFF)]
    crc = ~crc
    turned = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    masked: npt.NDArray[np.uint32] = turned + np.uint32(_SHIFT)
    return masked


def _table() -> npt.NDArray[np.uint32]:
    """Return the table of CRC-32C for one byte."""
    entries = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        odd = (entries & np.uint32(1)).astype(bool)
        entries = np.where(odd, (entries >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), entries >> 1)
    return entries.astype(np.uint32)
