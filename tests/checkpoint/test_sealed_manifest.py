"""The lines below a manifest's JSON, and the version that says which there are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from keys import KEY, OTHER_KEY

from holdfast.checkpoint.digest import DigestKind
from holdfast.checkpoint.errors import CommitRefused
from holdfast.checkpoint.manifest import FORMAT, Fields, Version
from holdfast.checkpoint.signature import Signature, SigningKey, Unsealed, seal, unseal

BODIES = st.binary(max_size=60).map(lambda line: line.replace(b"\n", b" ") + b"\n")
KEYS = st.sampled_from([None, KEY, OTHER_KEY])


@given(BODIES, KEYS)
def test_what_was_sealed_is_unsealed_by_whoever_has_the_key(
    body: bytes, key: SigningKey | None
) -> None:
    expected = Unsealed(
        body, key.id if key else None, Signature.VERIFIED if key else Signature.NONE
    )

    assert unseal(seal(body, key), key) == expected


@given(BODIES)
def test_without_a_key_a_signature_is_not_checked(body: bytes) -> None:
    assert unseal(seal(body, KEY), None) == Unsealed(body, KEY.id, Signature.NOT_CHECKED)


@given(BODIES)
def test_nothing_is_trusted_that_another_or_nobody_has_signed(body: bytes) -> None:
    with pytest.raises(ValueError, match=f"signed with key {OTHER_KEY.id}, not with {KEY.id}"):
        unseal(seal(body, OTHER_KEY), KEY)
    with pytest.raises(ValueError, match="it is not signed"):
        unseal(seal(body, None), KEY)


@given(BODIES, st.sampled_from([None, KEY]), st.data())
def test_any_flipped_bit_is_noticed(
    body: bytes, key: SigningKey | None, data: st.DataObject
) -> None:
    sealed = bytearray(seal(body, key))
    sealed[data.draw(st.integers(0, len(sealed) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(ValueError, match=r"damaged|signed"):
        unseal(bytes(sealed), key)


@given(BODIES, st.sampled_from([None, KEY]), st.data())
def test_any_cut_is_noticed(body: bytes, key: SigningKey | None, data: st.DataObject) -> None:
    sealed = seal(body, key)
    cut = sealed[: data.draw(st.integers(0, len(sealed) - 1))]

    with pytest.raises(ValueError, match=r"damaged|signed"):
        unseal(cut, key)


@given(BODIES, st.binary(min_size=1, max_size=9))
def test_anything_more_is_noticed(body: bytes, more: bytes) -> None:
    for key in (None, KEY):
        with pytest.raises(ValueError, match=r"no signature|not signed"):
            unseal(seal(body, key) + more, key)


@given(BODIES, BODIES)
def test_signature_of_one_manifest_is_none_of_another(body: bytes, other: bytes) -> None:
    signature = seal(other, KEY).splitlines(keepends=True)[-1]
    forged = seal(body, None) + signature

    if body == other:
        assert unseal(forged, KEY).signature is Signature.VERIFIED
    else:
        with pytest.raises(ValueError, match="its signature does not match"):
            unseal(forged, KEY)


# --- versions -----------------------------------------------------------------------------------


def fields(**changes: object) -> Fields:
    document = {"format": FORMAT, "version": 1, "digest": DigestKind.XXH3_128.value}
    return Fields(document | changes, "the manifest")


def test_key_decides_the_version_and_the_version_the_digest() -> None:
    assert Version.with_key(None) is Version.PLAIN
    assert Version.with_key(KEY) is Version.SIGNED
    assert Version.PLAIN.digest is DigestKind.XXH3_128
    assert Version.SIGNED.digest is DigestKind.SHA256


@pytest.mark.parametrize("version", list(Version))
@pytest.mark.parametrize("shards", [1, 4])
def test_shards_of_one_digest_are_of_its_version(version: Version, shards: int) -> None:
    assert Version.of_digests([version.digest] * shards) is version


def test_shards_of_different_digests_make_no_checkpoint() -> None:
    with pytest.raises(CommitRefused, match="give all workers the same key file"):
        Version.of_digests([DigestKind.SHA256, DigestKind.XXH3_128, DigestKind.SHA256])


@pytest.mark.parametrize("version", list(Version))
def test_manifest_says_its_version_as_it_is_written(version: Version) -> None:
    said = fields(version=version.value, digest=version.digest.value)

    assert Version.decode(said, is_signed=version is Version.SIGNED) is version
    with pytest.raises(ValueError, match=f"its version is {version.value}, but it is"):
        Version.decode(said, is_signed=version is not Version.SIGNED)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "tar"}, "its format is 'tar'"),
        ({"version": 0}, "its version is 0, this version reads 1 and 2"),
        ({"version": 3}, "its version is 3, this version reads 1 and 2"),
        ({"digest": "md5"}, "its digest is 'md5', version 1 has 'xxh3_128'"),
        ({"version": 2}, "its digest is 'xxh3_128', version 2 has 'sha256'"),
    ],
)
def test_manifest_of_another_kind_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Version.decode(fields(**changes), is_signed=False)
