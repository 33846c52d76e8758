"""``holdfast list``, ``inspect``, ``verify`` and ``repair`` over a place of copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import holdfast_code
from copied_run import Copied
from holders import damage
from host_saves import RUN
from s3_server import BUCKET, change_object, s3_server

from holdfast.runtime.run.place import Place

pytestmark = pytest.mark.process


@pytest.fixture(params=["file", "s3"])
def copied(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Copied:
    """A run with steps 10 and 20 in its place."""
    url = f"file://{tmp_path}/places/one"
    if request.param == "s3":
        server = request.getfixturevalue("bucket_server")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"{BUCKET}/places/one"
    copied = Copied(tmp_path / "run", url)
    copied.save(10, 20)
    copied.copy()
    return copied


@pytest.fixture
def bucket_server(tmp_path: Path) -> object:
    with s3_server(tmp_path) as server:
        yield server


def test_place_is_verified_and_inspected_like_a_run_directory(
    copied: Copied, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [holdfast_code(command, copied.url) for command in ("verify", "inspect")]
    out = capsys.readouterr().out

    assert codes == [0, 0]
    assert "step 20: valid, " in out
    assert "step 10: valid, " in out
    assert "are as they were saved" in out


def test_damaged_object_is_found_and_a_step_here_mended_by_the_others(
    copied: Copied, capsys: pytest.CaptureFixture[str]
) -> None:
    change_object(copied.url, "checkpoints/step-000000000020/shard-00001-of-00002.h5")
    damage(copied.store, 10)
    verified = holdfast_code("verify", copied.url)
    told = capsys.readouterr()
    mended = holdfast_code("repair", copied.run_dir, "--from", copied.url, "--step", 10)

    assert (verified, mended) == (1, 0)
    assert "step 20: not valid: " in told.out
    assert "step 10: valid, " in told.out
    assert f"remove {copied.url}/checkpoints/step-000000000020; the next job" in told.err
    assert copied.store.scan(10).verify().step == 10


def test_places_below_a_url_are_listed_with_their_steps(
    copied: Copied, capsys: pytest.CaptureFixture[str]
) -> None:
    above = copied.url.removesuffix("/one")
    codes = [holdfast_code("list", above, "--json"), holdfast_code("list", above)]
    first, *table = capsys.readouterr().out.splitlines()

    assert codes == [0, 0]
    assert json.loads(first) == [
        {"url": copied.url, "run_id": RUN, "script": None, "steps": [20, 10]}
    ]
    assert "20, 10" in "".join(table)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("verify", "{place}/none"), "{place}/none is no place of copies: it has no RUN.json"),
        (("inspect", "{place}/one", "--step", "5"), "{place}/one has no step 5; it has 20, 10"),
        (("status", "{place}/one"), "{place}/one is a place of copies, which inspect, verify"),
        (("repair", "{place}/one", "--from", "run"), "{place}/one is a place of copies"),
        (("verify", "s3://a:hidden-word@b/c"), "leave keys and passwords out"),
    ],
)
def test_what_a_place_cannot_answer_is_one_sentence(
    words: tuple[str, ...], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"file://{tmp_path}/places"
    copied = Copied(tmp_path / "run", f"{place}/one")
    copied.save(10, 20)
    copied.copy()

    assert holdfast_code(*(word.format(place=place) for word in words)) == 2
    assert complaint.format(place=place) in (told := capsys.readouterr().err)
    assert "hidden-word" not in told
    assert Place(f"{place}/one").store.steps() == (20, 10)
