"""A key signs and verifies, and its file is closed to others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from keys import KEY, OTHER_KEY

from holdfast.checkpoint.errors import KeyUnusable
from holdfast.checkpoint.signature import KeyFile, SigningKey, read_key

SECRET = b"sesame-sesame-sesame-sesame-sesame"


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_key_is_every_byte_of_the_file(path: Path, mode: int) -> None:
    path.chmod(mode)

    assert read_key(path).secret == SECRET


def test_link_to_a_key_is_as_good_as_the_key(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)

    assert read_key(link).secret == SECRET


@pytest.mark.parametrize(
    ("mode", "shown"), [(0o640, "0640"), (0o604, "0604"), (0o620, "0620"), (0o601, "0601")]
)
def test_key_that_others_may_use_is_refused(path: Path, mode: int, shown: str) -> None:
    path.chmod(mode)

    with pytest.raises(KeyUnusable, match=rf"has mode {shown}, .* chmod 600 {path}"):
        read_key(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_key_of_another_user_is_refused(path: Path) -> None:
    os.chown(path, 54321, 54321)

    with pytest.raises(KeyUnusable, match=rf"{path} belongs to user 54321, .*; copy it"):
        read_key(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_key_of_root_is_good_for_every_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.checkpoint.signature.os.geteuid", lambda: 54321)

    assert read_key(path).secret == SECRET


def _replace(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.unlink()
        make(path)

    return change


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (Path.unlink, "cannot be read: No such file"),
        (_replace(Path.mkdir), "is not a regular file"),
        (_replace(lambda path: os.mkfifo(path, 0o600)), "is not a regular file"),
        (_replace(lambda path: path.symlink_to("/dev/zero")), "is not a regular file"),
        (_replace(lambda path: path.symlink_to(path)), "cannot be read: Too many levels"),
        (lambda path: os.truncate(path, 31), "has 31 bytes, a key has 32 to 4096"),
        (lambda path: os.truncate(path, 0), "has 0 bytes"),
        (lambda path: os.truncate(path, 4097), "has 4097 bytes"),
    ],
)
def test_what_is_no_key_is_refused_with_the_way_to_make_one(
    path: Path, change: Callable[[Path], None], complaint: str
) -> None:
    change(path)

    with pytest.raises(KeyUnusable, match=complaint) as caught:
        read_key(path)

    assert str(path) in str(caught.value)
    # A recipe that writes there would harm a directory or a device.
    advice = "name another path" if "regular" in complaint else "head -c 32 /dev/urandom"
    assert advice in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_file_is_read_again_only_as_long_as_it_holds_the_same_key(path: Path) -> None:
    described = KeyFile.of(path)
    assert described.read() == read_key(path)

    path.write_bytes(SECRET[::-1])

    with pytest.raises(KeyUnusable, match=rf"holds key .*, not {described.key_id}") as caught:
        described.read()
    assert "sesame" not in f"{caught.value}{described}"
