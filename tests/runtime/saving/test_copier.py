"""Steps are copied to a second place, whole or not at all, and taken from there again."""

from __future__ import annotations

import contextlib
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import holdfast_code
from copied_run import Copied
from holders import damage
from host_saves import RUN
from s3_server import BUCKET, S3Server, change_object, objects_in, s3_server
from whole_save import is_same, save

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.retention import Best, Retention, Wanted
from holdfast.runtime.errors import RunUnreadable, UsageError
from holdfast.runtime.run.place import Place
from holdfast.runtime.run.run_directory import RunDirectory

pytestmark = pytest.mark.process


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with s3_server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture(params=["file", "s3"])
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Copied:
    """A run with a place on a disk, and one in a bucket."""
    if request.param == "file":
        return Copied(tmp_path / "run", f"file://{tmp_path}/place")
    request.getfixturevalue("server")
    return Copied(tmp_path / "run", f"{BUCKET}/place")


def test_steps_go_newest_first_and_come_back_bit_for_bit(copied: Copied) -> None:
    copied.save(10, 20, 30)
    (copied.run_dir / "script.jsonl").write_text('{"drawn": 1}\n')
    (copied.run_dir / "loaded").mkdir()
    (copied.run_dir / "loaded" / "1-ab-model.keras").write_bytes(b"model")
    before, _ = restore_newest(copied.store)
    order, again = copied.copy(), copied.copy()
    copied.lose()
    told = copied.take()
    after, rejected = restore_newest(copied.store, run_id=RUN)

    assert (order, again, copied.said) == ([30, 20, 10], [], [])
    assert told == tuple(f"took step {step} from {copied.url}" for step in (30, 20, 10))
    assert before is not None
    assert after is not None
    assert is_same(before.state, after.state)
    assert not rejected
    assert (copied.run_dir / "script.jsonl").read_text() == '{"drawn": 1}\n'
    assert (copied.run_dir / "loaded" / "1-ab-model.keras").read_bytes() == b"model"
    assert copied.copy() == []


def test_copy_that_was_cut_short_is_no_step_and_the_next_copier_removes_it(copied: Copied) -> None:
    """The copier dies between two files of step 20, which is pruned here meanwhile."""

    class Killed(Exception):
        pass

    def die() -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # one of a library
        if any("20/shard" in name for name in objects_in(copied.url)):
            raise Killed

    copied.save(10)
    copied.copy()
    copied.save(20)
    with pytest.raises(Killed):
        copied.copier(moves=die).work()
    half, listed = objects_in(copied.url), copied.there()
    shutil.rmtree(copied.store.directory / "step-000000000020")
    copied.copy()

    assert any("step-000000000020" in name for name in half)
    assert listed == (10,)
    assert not any("step-000000000020" in name for name in objects_in(copied.url))
    assert copied.there() == (10,)


def test_place_keeps_what_the_retention_keeps(copied: Copied) -> None:
    """Of old steps the best one and every hundredth stay, in both places."""
    wanted = Wanted(every=100, best=Best("loss", is_smaller_better=True))
    retention = Retention(2, (wanted,))
    copied.save(20, loss=0.1)
    copied.save(100, 110, loss=0.5)
    copied.copy(retention)
    shutil.rmtree(copied.store.directory / "step-000000000020")
    copied.save(120, 130, loss=0.4)
    copied.copy(retention)

    assert copied.there() == (130, 120, 100, 20)
    assert not any("step-000000000110" in name for name in objects_in(copied.url))


def test_nothing_is_removed_before_the_retention_is_known(tmp_path: Path) -> None:
    copied = Copied(tmp_path / "run", f"file://{tmp_path}/place")
    copied.save(10, 20, 30, 40)
    copied.copy()
    first = copied.there()
    copied.copy(Retention(2))

    assert first == (40, 30, 20, 10)
    assert copied.there() == (40, 30)


def test_step_that_a_prune_removes_meanwhile_is_copied_whole(tmp_path: Path) -> None:
    """A place that is slower than the saves gets whole steps all the same."""
    copied = Copied(tmp_path / "run", f"file://{tmp_path}/place")
    copied.save(10)
    step = copied.store.directory / "step-000000000010"
    copier = copied.copier(moves=lambda: shutil.rmtree(step, ignore_errors=True))

    done = copier.work()
    assert done is not None
    assert done.step == 10
    assert Place(copied.url).store.scan(10).verify().step == 10


def test_record_in_the_place_is_that_of_the_run_and_not_of_one_job(tmp_path: Path) -> None:
    """A job may have other threads, and the next one has those of the run again."""
    copied = Copied(tmp_path / "run", f"file://{tmp_path}/place")
    directory = RunDirectory(copied.run_dir)
    begun = directory.load_record()
    assert begun is not None
    directory.replace_record(replace(begun, threads=3))
    copied.copy()

    assert Place(copied.url).record() == directory.load_record()


def test_step_that_is_damaged_here_is_left_out(tmp_path: Path) -> None:
    copied = Copied(tmp_path / "run", f"file://{tmp_path}/place")
    copied.save(10, 20)
    damage(copied.store, 20)

    assert copied.copy() == [10]
    assert len(copied.said) == 1
    assert copied.said[0].startswith("step 20 is left out, as it does not verify: ")


def test_step_of_a_later_training_takes_the_place_of_one_with_its_number(tmp_path: Path) -> None:
    copied = Copied(tmp_path / "run", f"file://{tmp_path}/place")
    copied.save(10)
    copied.copy()
    shutil.rmtree(copied.store.directory)
    save(copied.store, {"a": np.zeros(3)}, header=Header(RUN, 2, 10))

    assert copied.copy() == [10]
    assert Place(copied.url).store.scan(10).verify().generation == 2


def test_object_that_was_damaged_is_left_out_and_the_older_step_taken(copied: Copied) -> None:
    copied.save(10, 20)
    copied.copy()
    change_object(copied.url, "checkpoints/step-000000000020/shard-00001-of-00002.h5")
    copied.lose()
    left_out, taken = copied.take()

    assert left_out.startswith(f"step 20 in {copied.url} is left out: ")
    assert taken == f"took step 10 from {copied.url}"
    assert copied.store.steps() == (10,)


def test_directory_that_is_ahead_takes_nothing(tmp_path: Path) -> None:
    copied = Copied(tmp_path / "run", f"file://{tmp_path}/place")
    copied.save(10)
    copied.copy()
    shutil.rmtree(copied.store.directory)
    copied.save(20)

    assert copied.take() == ()
    assert copied.store.steps() == (20,)


@pytest.mark.parametrize("way", ["begin", "copy", "fresh", "no record"])
def test_copies_of_another_run_are_refused(way: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/place"
    first = Copied(tmp_path / "first", url, "first")
    first.save(10)
    first.copy()
    other = Copied(tmp_path / "run", url)
    other.save(20)
    if way == "no record":
        (tmp_path / "place" / "RUN.json").unlink()
    with pytest.raises(UsageError, match=r"give (this run|that) a URL of its own by --copy-to"):
        other.copy() if way == "copy" else other.take(is_fresh=way == "fresh")

    assert Place(url).store.steps() == (10,)
    assert other.store.steps() == (20,)


def test_place_without_a_sound_step_does_not_let_the_run_begin_anew(tmp_path: Path) -> None:
    copied = Copied(tmp_path / "run", f"file://{tmp_path}/place")
    copied.save(10)
    copied.copy()
    change_object(copied.url, "checkpoints/step-000000000010/shard-00000-of-00002.h5")
    copied.lose()

    with pytest.raises(RunUnreadable, match="none of the steps in"):
        copied.take()


def test_server_that_is_killed_in_mid_copy_costs_nothing_but_the_copy(
    server: S3Server, tmp_path: Path
) -> None:
    copied = Copied(tmp_path / "run", f"{BUCKET}/place")
    copied.save(10)
    copier = copied.copier(moves=server.kill)
    with pytest.raises((OSError, StorageFailed), match=r"onnect|not answered"):
        copier.work()
    server.start_again()
    (copied.run_dir / "script.jsonl").write_text("{}\n")
    done = copied.copy()

    assert done == [10]
    assert copied.copier().lacking == 10
    assert Place(copied.url).store.scan(10).verify().step == 10
    assert "RUN.json" in objects_in(copied.url)


def test_server_that_hangs_is_given_up_and_asked_again(server: S3Server, tmp_path: Path) -> None:
    copied = Copied(tmp_path / "run", f"{BUCKET}/place")
    copied.save(10)
    place = Place(copied.url, within_s=0.5)
    with server.hanging(), pytest.raises(StorageFailed, match=f"list {copied.url}.*for 0 s"):
        place.store.steps()

    while True:  # a machine that is busy may answer later than the bound
        with contextlib.suppress(StorageFailed):
            assert place.store.steps() == ()
            break
    assert copied.copy() == [10]


def test_run_that_may_be_in_a_place_that_is_away_does_not_begin_anew(
    server: S3Server, tmp_path: Path
) -> None:
    copied = Copied(tmp_path / "run", f"{BUCKET}/place")
    copied.save(10)
    copied.copy()
    server.kill()
    (goes_on,) = copied.take()
    copied.lose()

    assert goes_on.startswith(f"{copied.url} was not asked for newer steps: ")
    with pytest.raises(RunUnreadable, match="it may hold this run"):
        copied.take()


def test_access_that_is_denied_is_said_without_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path, INITIAL_NO_AUTH_ACTION_COUNT="0") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        copied = Copied(tmp_path / "run", f"{BUCKET}/place")
        with pytest.raises(UsageError, match="cannot be read") as refused:
            copied.take()
        copied.save(10)
        with pytest.raises(OSError, match=r"."):
            copied.copier().work()
        assert len(copied.take()) == 1

    assert "hidden-word" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("s3://someone:hidden-word@bucket/place", "leave keys and passwords out"),
        ("s3://bucket/place?key=hidden-word", "leave keys and passwords out"),
        ("ftp://bucket/place", "give s3://BUCKET/FOLDER"),
        ("/place", "give s3://BUCKET/FOLDER"),
        ("s3://", "give s3://BUCKET/FOLDER"),
        ("file://place", "give file:///FOLDER, an absolute path"),
    ],
)
def test_url_that_is_none_is_refused_and_not_shown(
    url: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = holdfast_code("run", "--copy-to", url, "train.py")

    assert code == 2
    assert f"--copy-to: {complaint}" in (told := capsys.readouterr().err)
    assert "hidden-word" not in told


def test_library_that_is_missing_is_named_with_the_extra_that_has_it() -> None:
    """Google's is not among those that the tests need."""
    with pytest.raises(UsageError, match=r"`pip install 'holdfast-mpi\[gs\]'` installs it"):
        Place("gs://bucket/place")
