"""The manifest: strict JSON, entries, metrics, and its lines below."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.checkpoint.errors import CommitRefused, ManifestInvalid
from holdfast.checkpoint.manifest import (
    EpochMetrics,
    Header,
    Manifest,
    ShardRecord,
    entry_of,
)
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


def resealed(document: Any) -> bytes:
    """Return a document with a right sha256, as a bug or an attacker would."""
    body = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    return body + hashlib.sha256(body).hexdigest().encode() + b"\n"


def records() -> list[ShardRecord]:
    """Return what two writers would report."""
    return [
        ShardRecord(
            writer,
            30_000,
            f"{writer}" * 32,
            tuple(
                entry_of(p, writer, 4096 + 16384 * i, "a" * 32)
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


def document() -> Any:
    return json.loads(manifest().encode().splitlines()[0])


def test_it_is_what_version_1_says_to_the_byte() -> None:
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
        (set_at("format", value="tar"), "it has format 'tar'"),
        (set_at("version", value=0), "version 0 and .* reads .* version 1 and"),
        (set_at("version", value=2), "version 2 and .* reads .* version 1 and"),
        (set_at("version", value="1"), "version of the manifest is not an integer"),
        (
            set_at("digest", value="md5"),
            "digest 'md5'; .* reads .* digest 'xxh3_128'",
        ),
        (set_at("step", value=-1), "step of the manifest is out of range"),
        (set_at("step", value=30.0), "step of the manifest is not an integer"),
        (set_at("cursor", value=[]), "cursor of the manifest is not an object"),
        (set_at("writers", value=3), "writers is not the number of shards"),
        (set_at("shards", 0, "index", value=1), "shards are not numbered from 0"),
        (set_at("shards", 1, "size", value=100), "shard 1 is smaller than its pieces"),
        (set_at("format", value=7), "format of the manifest is not a string"),
        (set_at("shards", 1, "digest", value=31 * "0"), "not 32 hexadecimal digits"),
        (set_at("shards", 1, "digest", value=32 * "G"), "not 32 hexadecimal digits"),
        (set_at("tensors", 0, "dtype", value="object"), "dtype object cannot be stored"),
        (set_at("tensors", 0, "shape", value=[2**40]), "tensor 'a' has 4000 of 1099511627776"),
        (set_at("tensors", 0, "shape", value=[-4000, -1]), "out of range"),
        (set_at("tensors", 0, "shape", value="4000"), "shape of a tensor is not an array"),
        (set_at("tensors", 0, "pieces", 0, "start", value=1), "do not tile it"),
        (set_at("tensors", 0, "pieces", 0, "stop", value=0), "do not tile it"),
        (set_at("tensors", 0, "pieces", 0, "bytes", value=1), "has a wrong size"),
        (set_at("tensors", 0, "pieces", 1, "offset", value=10**6), "smaller than its pieces"),
        (set_at("tensors", 0, "pieces", 1, "shard", value=9), "is in no shard"),
        (set_at("tensors", 0, "pieces", 1, "shard", value=0), "overlaps another"),
        (set_at("tensors", 0, "pieces", value=[]), "tensor 'a' has 0 of 4000 elements"),
        (set_at("tensors", 1, "name", value="a"), "tensor names do not ascend"),
        (set_at("tensors", 1, "name", value="\ud800"), "not valid Unicode"),
        (set_at("tensors", value=[7]), "a tensor is not an object"),
    ],
)
def test_sealed_nonsense_is_refused(change: Callable[[Any], None], reason: str) -> None:
    """A bug or an attacker can seal anything; the invariants hold all the same."""
    found = document()
    change(found)

    with pytest.raises(ManifestInvalid, match=reason):
        Manifest.decode(resealed(found))


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


def test_metrics_are_read_back_from_a_manifests_cursor() -> None:
    metrics = EpochMetrics.join(3, 120, {"loss": 0.5, "accuracy": 1}, {"loss": 0.75})

    cursor = json.loads(json.dumps(metrics.into({"step": 125})))

    assert cursor["step"] == 125
    assert EpochMetrics.of(cursor) == metrics
    assert metrics.values == {"loss": 0.5, "accuracy": 1, "val_loss": 0.75}


def test_what_is_not_finite_is_left_out() -> None:
    cursor = EpochMetrics(1, 10, {"loss": math.nan, "a": math.inf, "b": 2.0}).into({})

    found = EpochMetrics.of(json.loads(json.dumps(cursor, allow_nan=False)))

    assert found == EpochMetrics(1, 10, {"b": 2.0})


@pytest.mark.parametrize(
    "cursor",
    [
        {},
        {"epoch": 3},
        {"epoch": {"number": 3, "step": 1}},
        {"epoch": {"number": "3", "step": 1, "metrics": {}}},
        {"epoch": {"number": 3, "step": None, "metrics": {}}},
    ],
)
def test_other_cursors_hold_none(cursor: dict[str, object]) -> None:
    assert EpochMetrics.of(cursor) is None


@pytest.mark.parametrize("crafted", ["1" + "0" * 400, "1e999", "-Infinity", "NaN", '"1"', "true"])
def test_what_no_float_holds_is_no_metric(crafted: str) -> None:
    text = f'{{"epoch": {{"number": 1, "step": 1, "metrics": {{"a": {crafted}, "b": 1}}}}}}'

    assert EpochMetrics.of(json.loads(text)) == EpochMetrics(1, 1, {"b": 1.0})
