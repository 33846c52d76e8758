"""A manifest comes back exactly, or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.checkpoint.errors import CommitRefused, ManifestInvalid
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.record import Header, PieceRecord, ShardRecord
from holdfast.checkpoint.tensor import ShardLayout, TensorSpec

HEADER = Header("run-1", 7, 30)
LAYOUT = ShardLayout(
    (
        TensorSpec("a", "float32", (4000,)),
        TensorSpec("b", "int64", (0,)),
        TensorSpec("c", "bool", ()),
    ),
    2,
)


def records() -> list[ShardRecord]:
    """Return what two writers would report."""
    return [
        ShardRecord(
            writer,
            30_000,
            f"{writer}" * 32,
            tuple(
                PieceRecord(p.spec.name, p.start, p.stop, 4096 + 16384 * i, p.nbytes, "a" * 32)
                for i, p in enumerate(LAYOUT.pieces(writer))
                if p.nbytes
            ),
        )
        for writer in range(2)
    ]


def manifest() -> Manifest:
    cursor = {"step": 30, "seed": 5, "rate": 0.1, "nested": {"list": [1, None, "é"]}}
    return Manifest.assemble(
        LAYOUT, records(), header=HEADER, cursor=cursor, numerics={"threads": 1}
    )


def signed(document: object) -> bytes:
    """Return a document as a manifest whose sha256 is right."""
    body = json.dumps(document).encode() + b"\n"
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"


def document() -> Any:
    return json.loads(manifest().encode().splitlines()[0])


def test_manifest_survives_encoding() -> None:
    assert Manifest.decode(manifest().encode()) == manifest()


def test_without_a_key_it_is_what_version_1_says_to_the_byte() -> None:
    """A constant, so that a change of the format cannot go unnoticed."""
    assert hashlib.sha256(manifest().encode()).hexdigest() == (
        "f18de4187b2adda30a6547a5037925b07502a7e17897fdd93a2dcddc3168c551"
    )


def test_manifest_tells_what_was_saved() -> None:
    found = Manifest.decode(manifest().encode())

    assert (found.run_id, found.generation, found.step, found.writers) == ("run-1", 7, 30, 2)
    assert found.specs == LAYOUT.specs
    assert found.nbytes == 60_000
    assert found.cursor["rate"] == 0.1
    assert found.numerics == {"threads": 1}


def test_records_may_come_in_any_order() -> None:
    backwards = Manifest.assemble(
        LAYOUT, records()[::-1], header=HEADER, cursor=manifest().cursor, numerics={"threads": 1}
    )

    assert backwards == manifest()


def test_every_flipped_bit_is_found() -> None:
    data = bytearray(manifest().encode())

    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            with pytest.raises(ManifestInvalid):
                Manifest.decode(bytes(data))
            data[position] ^= 1 << bit


def test_every_truncation_and_extension_is_found() -> None:
    data = manifest().encode()

    for length in range(len(data)):
        with pytest.raises(ManifestInvalid):
            Manifest.decode(data[:length])
    for more in (b"\n", b"x", data):
        with pytest.raises(ManifestInvalid):
            Manifest.decode(data + more)


def set_at(*path: str | int, value: object) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (set_at("format", value="tar"), "its format is 'tar'"),
        (set_at("version", value=3), "its version is 3, this version reads 1 and 2"),
        (set_at("version", value=2), "its digest is 'xxh3_128', version 2 has 'sha256'"),
        (set_at("version", value="1"), "version of the manifest is not an integer"),
        (set_at("digest", value="md5"), "its digest is 'md5'"),
        (set_at("step", value=-1), "step of the manifest is out of range"),
        (set_at("step", value=30.0), "step of the manifest is not an integer"),
        (set_at("cursor", value=[]), "cursor of the manifest is not an object"),
        (set_at("writers", value=3), "writers is not the number of shards"),
        (set_at("shards", 0, "index", value=1), "shards are not numbered from 0"),
        (set_at("shards", 1, "size", value=100), "shard 1 is smaller than its pieces"),
        (set_at("shards", 1, "digest", value="../x"), "not 32 hexadecimal digits"),
        (set_at("tensors", 0, "dtype", value="object"), "dtype object cannot be stored"),
        (set_at("tensors", 0, "shape", value=[2**40]), "tensor 'a' has 4000 of 1099511627776"),
        (set_at("tensors", 0, "shape", value=[-4000, -1]), "out of range"),
        (set_at("tensors", 0, "shape", value="4000"), "shape of a tensor is not an array"),
        (set_at("tensors", 0, "pieces", 0, "start", value=1), "do not tile it"),
        (set_at("tensors", 0, "pieces", 0, "stop", value=0), "do not tile it"),
        (set_at("tensors", 0, "pieces", 0, "bytes", value=1), "has a wrong size"),
        (set_at("tensors", 0, "pieces", 1, "offset", value=10**6), "smaller than its pieces"),
        (set_at("tensors", 0, "pieces", 1, "shard", value=0), "overlaps another"),
        (set_at("tensors", 0, "pieces", value=[]), "tensor 'a' has 0 of 4000 elements"),
        (set_at("tensors", 1, "name", value="a"), "tensor names do not ascend"),
        (set_at("tensors", 1, "name", value="\ud800"), "not valid Unicode"),
        (set_at("tensors", value=[7]), "a tensor is not an object"),
    ],
)
def test_signed_nonsense_is_refused(change: Callable[[Any], None], reason: str) -> None:
    """A bug or an attacker can sign anything; the invariants hold all the same."""
    found = document()
    change(found)

    with pytest.raises(ManifestInvalid, match=reason):
        Manifest.decode(signed(found))


@pytest.mark.parametrize("body", ["[" * 100_000 + "]" * 100_000, "7", "nonsense", '{"a":1}', ""])
def test_signed_rubbish_is_refused(body: str) -> None:
    data = body.encode() + b"\n"

    with pytest.raises(ManifestInvalid):
        Manifest.decode(data + hashlib.sha256(data).hexdigest().encode() + b"\n")


def test_piece_in_a_shard_that_does_not_exist_is_refused() -> None:
    found = document()
    found["tensors"][0]["pieces"][1]["shard"] = 9

    with pytest.raises(ManifestInvalid, match="is in no shard"):
        Manifest.decode(signed(found))


def test_missing_and_doubled_shards_are_not_committed() -> None:
    for found in ([], records()[:1], [records()[0], records()[0]], [*records(), records()[1]]):
        with pytest.raises(CommitRefused, match="needs shards 0 to 1"):
            Manifest.assemble(LAYOUT, found, header=HEADER, cursor={}, numerics={})


def test_records_of_another_layout_are_not_committed() -> None:
    other = ShardLayout((TensorSpec("a", "float32", (4001,)),), 2)
    fewer = ShardLayout((TensorSpec("c", "bool", ()),), 2)

    with pytest.raises(CommitRefused):
        Manifest.assemble(other, records(), header=HEADER, cursor={}, numerics={})
    with pytest.raises(CommitRefused, match="a tensor too many: 'a'"):
        Manifest.assemble(fewer, records(), header=HEADER, cursor={}, numerics={})


@pytest.mark.parametrize("value", [object(), float("nan"), b"bytes", {1, 2}])
def test_cursor_that_is_not_json_is_refused(value: object) -> None:
    found = Manifest.assemble(
        LAYOUT, records(), header=HEADER, cursor={"value": value}, numerics={}
    )

    with pytest.raises(CommitRefused, match="put only JSON values into cursor and numerics"):
        found.encode()
