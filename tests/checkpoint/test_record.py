"""Records travel as JSON and come back the same, or not at all."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.record import PieceRecord, ShardRecord

RECORD = ShardRecord(
    index=1,
    size=5000,
    digest="0123456789abcdef" * 2,
    pieces=(PieceRecord("käse/b", 3, 10, 4096, 28, "f" * 32),),
)


def test_record_survives_the_way_there() -> None:
    assert ShardRecord.decode(RECORD.encode()) == RECORD
    assert ShardRecord.from_json(RECORD.as_json()) == RECORD


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"index": -1}, "index of a shard record is out of range: -1"),
        ({"index": True}, "index of a shard record is not an integer"),
        ({"size": 2**63}, "size of a shard record is out of range"),
        ({"digest": "F" * 32}, "digest of a shard record is not 32 hexadecimal digits"),
        ({"kind": "sha256"}, "digest of a shard record is not 64 hexadecimal digits"),
        ({"kind": "md5"}, "'md5' is not a valid DigestKind"),
        ({"digest": 7}, "digest of a shard record is not a string"),
        ({"pieces": {}}, "pieces of a shard record is not an array"),
        ({"pieces": [7]}, "a piece record is not an object"),
        ({"pieces": [{}]}, "a piece record has no tensor"),
    ],
)
def test_malformed_record_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ShardRecord.from_json(RECORD.as_json() | change)
