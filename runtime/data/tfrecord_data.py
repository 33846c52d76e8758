"""Records of TFRecord files, each read by its number through an index of where it begins.

A record is its length (8 bytes), a checksum of the length (4), the content, and a checksum of the
content (4).  A scan reads the lengths only.  The checksums are CRC-32C, turned and shifted by a
constant, so that the checksum of a text with checksums in it is no simple number.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.digest import Digest
from holdfast.runtime.data.array_data import probed_ids
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import MOST_PARTS, SampleIds, Samples
from holdfast.runtime.run.files import write_whole

ENDING = ".index"
_HEAD = struct.Struct("<QI")
_FRAME_BYTES = _HEAD.size + 4
_POLYNOMIAL = 0x82F63B78
_SHIFT = 0xA282EAD8
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda")
Offsets = npt.NDArray[np.int64]


class TFRecordData:
    """Records of TFRecord files without compression, read by number through an index.

    A resume is exact: a record is found by its place in the index.  The index names the length, the
    time and the checksum of its file.  Each record that is read has a checksum of its own.

    The index is made by one scan over the lengths of the records, and kept beside each file,
    under its name and ``.index``.

    Args:
        files: the path of a file, or those of several, whose records follow each other.
        parse: makes x, ``(x, y)`` or ``(x, y, sample_weight)`` of one serialised record, as in
            ``tf.data.TFRecordDataset(files).map(parse)``; all samples have one shape.
        index_dir: a directory for the indexes, where nothing can be written beside the files.

    Raises:
        ProgramError: a file is no TFRecord file, or is compressed, or there is no record.
    """

    def __init__(
        self,
        files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        parse: Callable[[Any], Any],
        *,
        index_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        several = [files] if isinstance(files, (str, os.PathLike)) else list(files)
        self._files = [os.fspath(file) for file in several]
        self._parse = parse
        indexes = [offsets_of(file, index_dir) for file in self._files]
        counts = [len(index) - 1 for index in indexes]
        self._firsts = np.cumsum([0, *counts])
        self._offsets = np.concatenate([np.zeros(0, np.int64), *(i[:-1] for i in indexes)])
        if not len(self._offsets):
            raise ProgramError("TFRecordData got no files: give at least one with a record")
        self._readers: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def fingerprint(self) -> str:
        """Return a digest of the places of all records, and of some records, made once."""
        return self._fingerprint

    @functools.cached_property
    def _fingerprint(self) -> str:
        digest = Digest()
        digest.update(self._firsts.astype(np.int64).tobytes())
        digest.update(self._offsets.tobytes())
        for number in probed_ids(len(self)).tolist():
            digest.update(self._record(number))
        return digest.hexdigest()

    def read(self, ids: SampleIds) -> Samples:
        """Return these records as ``parse`` makes arrays of them, one entry for each id.

        Raises:
            ProgramError: a record is damaged, or ``parse`` cannot be used.
        """
        found = self._parser([self._record(number) for number in ids.tolist()])
        parts = found if isinstance(found, tuple) else (found,)
        if not 1 <= len(parts) <= MOST_PARTS:
            raise ProgramError(
                f"the function that parses a record returned {len(parts)} parts: return x, (x, y) "
                "or (x, y, sample_weight); several inputs belong into one tuple or dict, x"
            )
        x, y, weights = (*parts, None, None)[:MOST_PARTS]
        return (x, y) if weights is None else (x, y, weights)

    @functools.cached_property
    def _parser(self) -> Callable[[list[bytes]], Any]:
        from holdfast.runtime.data.tf_decoding import parser_of

        return parser_of(self._parse)

    def _record(self, number: int) -> bytes:
        """Return the bytes of a record; its checksum is compared by the library."""
        if not 0 <= number < len(self):
            raise IndexError(f"there are {len(self)} records, and no record {number}")
        file = int(np.searchsorted(self._firsts, number, side="right")) - 1
        try:
            record: bytes = self._reader(file).read(int(self._offsets[number]))[0]
        except Exception as error:  # of several kinds, by the state of the file
            raise ProgramError(
                f"record {number - int(self._firsts[file]) + 1} of {self._files[file]} is damaged, "
                f"or the file was changed: write it again, or remove its {ENDING} file "
                f"({type(error).__name__})"
            ) from error
        return record

    def _reader(self, file: int) -> Any:
        from holdfast.runtime.data.tf_decoding import record_reader

        if file not in self._readers:
            self._readers[file] = record_reader(self._files[file])
        return self._readers[file]


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
    write_whole(place, head + b"\n" + content)


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
