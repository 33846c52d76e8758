"""Records of TFRecord files, each read by its number."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from holdfast.checkpoint.format.digest import Digest
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.data import MOST_PARTS, SampleIds, Samples
from holdfast.runtime.samples.probe import probed_ids
from holdfast.runtime.samples.record_index import ENDING, offsets_of


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
        from holdfast.runtime.samples.tf_decoding import parser_of

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
        from holdfast.runtime.samples.tf_decoding import record_reader

        if file not in self._readers:
            self._readers[file] = record_reader(self._files[file])
        return self._readers[file]
