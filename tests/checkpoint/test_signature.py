from __future__ import annotations

import pytest
from keys import KEY, OTHER_KEY

from holdfast.checkpoint.errors import KeyUnusable
from holdfast.checkpoint.signature import SigningKey


def test_signature_is_that_of_the_standard() -> None:
    """RFC 4231, test case 6."""
    key = SigningKey(b"\xaa" * 131)

    signature = key.sign(b"Test Using Larger Than Block-Size Key - Hash Key First")

    assert signature == "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"


def test_only_the_same_key_and_the_same_bytes_verify() -> None:
    signature = KEY.sign(b"data")

    assert KEY.has_signed(b"data", signature)
    assert not KEY.has_signed(b"Data", signature)
    assert not OTHER_KEY.has_signed(b"data", signature)
    assert not KEY.has_signed(b"data", "é" * 64)


def test_key_shows_its_id_and_never_its_secret() -> None:
    key = SigningKey(b"do not tell anybody, whatever happens")

    for text in (repr(key), str(key), f"{key}", key.id):
        assert "tell" not in text
        assert key.secret.hex() not in text
    assert len(key.id) == 16
    assert key.id != SigningKey(b"do not tell anybody, whatever happen5").id


def test_short_key_is_refused_without_showing_it() -> None:
    with pytest.raises(KeyUnusable, match=r"at least 32 bytes, this one has 31") as caught:
        SigningKey(b"x" * 31)

    assert "xxx" not in str(caught.value)
