from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.run.run_directory import RunDirectory

Holdfast = Callable[..., tuple[int, str, str]]


@pytest.fixture
def mirror(run_dir: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run_dir, tmp_path / "mirror")


def _files(run_dir: Path, step: int) -> list[Path]:
    return sorted((run_dir / f"checkpoints/step-{step:012d}").iterdir())


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_every_damaged_step_is_made_whole(holdfast: Holdfast, run_dir: Path, mirror: Path) -> None:
    manifest, shard = _files(run_dir, 6)[:2]
    _flip(manifest)
    shard.unlink()
    _flip(_files(run_dir, 4)[2])

    code, out, _ = holdfast("repair", run_dir, "--from", mirror)

    assert code == 0
    assert [line.partition(",")[0] for line in out.splitlines()] == [
        "step 6: mended and verified",
        "step 4: mended and verified",
    ]
    assert holdfast("verify", run_dir)[0] == 0
    assert len(list((run_dir / "checkpoints").glob(".bad-*"))) == 2


def test_whole_steps_are_nothing_to_do(holdfast: Holdfast, run_dir: Path, mirror: Path) -> None:
    code, out, _ = holdfast("repair", run_dir, "--from", mirror, "--step", 6)

    assert (code, out) == (0, "step 6: whole, nothing to do\n")


def test_what_is_missing_on_both_sides_is_exit_1(
    holdfast: Holdfast, run_dir: Path, mirror: Path
) -> None:
    for side in (run_dir, mirror):
        _files(side, 6)[1].unlink()
    _flip(_files(run_dir, 4)[2])

    code, out, _ = holdfast("repair", run_dir, "--from", mirror)

    newest, older = out.splitlines()
    assert code == 1
    assert newest.startswith("step 6: not mended: ")
    assert "neither holder has" in newest
    assert "in shard 0" in newest
    assert older.startswith("step 4: mended and verified")


def test_step_that_is_lost_altogether_comes_back(
    holdfast: Holdfast, run_dir: Path, mirror: Path
) -> None:
    shutil.rmtree(run_dir / "checkpoints")

    assert holdfast("repair", run_dir, "--from", mirror, "--step", 6)[0] == 0
    assert holdfast("verify", run_dir)[0] == 0


def test_mirror_of_another_run_is_of_no_use(
    holdfast: Holdfast, run_dir: Path, mirror: Path
) -> None:
    _files(run_dir, 6)[0].unlink()
    record = run_dir / "RUN.json"
    record.write_text(record.read_text().replace("00aa11bb22cc33dd", "another"))

    code, _, err = holdfast("repair", run_dir, "--from", mirror, "--step", 6)

    assert code == 2
    assert f"{mirror} holds run 00aa11bb22cc33dd, and {run_dir} is run another; give a copy" in err


def test_steps_of_another_run_without_a_record_are_of_no_use(
    holdfast: Holdfast, run_dir: Path, mirror: Path
) -> None:
    _files(run_dir, 6)[0].unlink()
    record = run_dir / "RUN.json"
    record.write_text(record.read_text().replace("00aa11bb22cc33dd", "another"))
    (mirror / "RUN.json").unlink()

    code, out, _ = holdfast("repair", run_dir, "--from", mirror, "--step", 6)

    assert code == 1
    assert "it belongs to run 00aa11bb22cc33dd, not to another" in out


def test_run_that_a_job_owns_is_left_to_it(holdfast: Holdfast, run_dir: Path, mirror: Path) -> None:
    lease = RunDirectory(run_dir).acquire_lease()
    try:
        code, _, err = holdfast("repair", run_dir, "--from", mirror)
    finally:
        lease.release()

    assert code == 76
    assert "belongs to another job" in err


def test_bad_requests_are_one_sentence_and_exit_2(
    holdfast: Holdfast, run_dir: Path, mirror: Path, tmp_path: Path
) -> None:
    for argv, complaint in (
        ([run_dir], "Missing option '--from'"),
        ([run_dir, "--from", run_dir], "itself; give another copy"),
        ([run_dir, "--from", tmp_path / "nowhere"], "nowhere is no run: it is no directory"),
        ([run_dir, "--from", mirror, "--step", 5], "mirror has no step 5; it has 6, 4"),
    ):
        code, _, err = holdfast("repair", *argv)

        assert code == 2
        assert complaint in err
