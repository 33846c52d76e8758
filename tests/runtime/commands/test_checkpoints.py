"""``holdfast inspect``, ``verify`` and ``repair`` over whole, damaged and unread
checkpoints.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole_save import save

from holdfast.checkpoint.errors import TRANSIENT
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.repair import StepCheck, verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run import files as files_module
from holdfast.runtime.run.run_directory import RunDirectory

Holdfast = Callable[..., tuple[int, str, str]]


def test_newest_step_is_shown_in_full(holdfast: Holdfast, run_dir: Path) -> None:
    code, out, _ = holdfast("inspect", run_dir)

    assert code == 0
    for fact in (
        "complete",
        "epochs complete: 1, 2 of 4 updates of the next",
        "weights 13.7 KiB (2 tensors), ",
        " KiB are as they were saved",
        "4 tensors, 13.7 KiB",
        "kernel  float32[500, 7]  13.7 KiB",
        "00aa11bb22cc33dd, saved by generation 1",
    ):
        assert fact in out
    assert "global batch" not in out
    assert "global batch=30" in holdfast("inspect", run_dir, "--full")[1]


def test_step_with_another_byte_than_was_saved_is_not_sound(
    holdfast: Holdfast, run_dir: Path
) -> None:
    shard = _shard(run_dir, 6)
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    _, out, _ = holdfast("inspect", run_dir)

    assert re.search(r"^ +6 .* damaged *$", out, re.MULTILINE)
    assert re.search(r"^sound +no: ", out, re.MULTILINE)


def test_step_too_large_to_be_read_at_once_is_left_to_verify(
    holdfast: Holdfast, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.commands.inspection._READ_AT_ONCE_BYTES", 100)

    code, out, _ = holdfast("inspect", run_dir)

    assert code == 0
    assert "not known: `holdfast verify` reads" in out


def test_training_of_a_step_is_told_by_its_epoch(holdfast: Holdfast, tmp_path: Path) -> None:
    cursor = {"epoch": {"number": 2, "step": 24, "metrics": {"accuracy": 0.75, "loss": 0.5}}}
    state = {"weights/a": np.zeros(3)}
    save(CheckpointStore(tmp_path), state, header=Header("r", 1, 27), cursor=cursor)

    _, out, _ = holdfast("inspect", tmp_path)

    assert "epoch 2 complete, 3 updates of the next; loss: 0.5000, accuracy: 0.7500" in out


def test_json_holds_the_same(holdfast: Holdfast, run_dir: Path) -> None:
    (run_dir / "checkpoints/.bad-000000000002-g1-a1").mkdir()

    code, out, _ = holdfast("inspect", run_dir, "--json", "--step", 4)

    found = json.loads(out)
    assert code == 0
    assert found["run_id"] == "00aa11bb22cc33dd"
    assert [(step["step"], step["damage"]) for step in found["steps"]] == [(6, None), (4, None)]
    assert found["steps"][0]["completed"] > 1e9
    assert found["others"] == [".bad-000000000002-g1-a1"]
    assert found["step"]["step"] == 4
    assert found["step"]["position"] == {"epochs": 1, "updates": 0, "updates_per_epoch": 4}
    assert [tensor["name"] for tensor in found["step"]["tensors"]][-1] == "weights/dense/kernel"
    assert found["step"]["tensors"][-1]["pieces"] == 2


def test_damaged_step_is_listed_with_the_reason(holdfast: Holdfast, run_dir: Path) -> None:
    shard = next((run_dir / "checkpoints/step-000000000006").glob("shard-00001*"))
    shard.unlink()

    code, out, _ = holdfast("inspect", run_dir, "--json")

    newest, older = json.loads(out)["steps"]
    assert code == 0
    assert "shard-00001-of-00002.h5: No such file" in newest["damage"]
    assert older["damage"] is None


def test_step_without_a_valid_manifest_cannot_be_shown(holdfast: Holdfast, run_dir: Path) -> None:
    (run_dir / "checkpoints/step-000000000006/MANIFEST.json").write_text("{}")

    code, out, err = holdfast("inspect", run_dir)

    assert code == 1
    assert "damaged or cut short" in out
    assert "checkpoint step 6 is invalid" in err
    assert holdfast("inspect", run_dir, "--step", 4)[0] == 0


def test_name_that_looks_like_markup_is_printed_as_it_is(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    state = {"[bold]/[/red]": np.zeros(3)}
    save(CheckpointStore(tmp_path), state, header=Header("[run]", 1, 1))

    code, out, _ = holdfast("inspect", tmp_path)

    assert code == 0
    assert "[bold]" in out
    assert "[run]" in out


def test_cursor_is_shown_without_the_marks_of_python(holdfast: Holdfast, tmp_path: Path) -> None:
    cursor = {"step": 1, "metrics": {"of step": 1, "values": {"val/loss": 0.5}}, "best": None}
    save(CheckpointStore(tmp_path), {"a": np.zeros(3)}, header=Header("r", 1, 1), cursor=cursor)

    code, out, _ = holdfast("inspect", tmp_path, "--full")

    assert code == 0
    assert "metrics=(of step=1, values=(val/loss=0.5)), best=-" in " ".join(out.split())


def test_two_steps_differ_in_what_training_changes(holdfast: Holdfast, run_dir: Path) -> None:
    code, out, _ = holdfast("inspect", run_dir, "--diff", 4, 6, "--json")

    found = json.loads(out)
    assert code == 0
    assert (found["is_same"], found["same"]) == (False, 1)
    assert [(d["name"], d["elements"], d["largest"]) for d in found["differences"]] == [
        ("cursor/step", 1, None),
        ("optimizer/sgd/iterations", 1, None),
        ("weights/dense/bias", 7, 2.0),
    ]


def test_difference_of_two_runs_has_a_line_for_each_tensor(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(run_dir, tmp_path / "other")
    shutil.rmtree(other / "checkpoints/step-000000000006")
    state = {"weights/dense/bias": np.full(7, np.nan, np.float32), "new": np.zeros(2)}
    save(CheckpointStore(other), state, header=Header("x", 1, 9))

    code, out, _ = holdfast("inspect", run_dir, "--diff", run_dir, other)

    assert code == 0
    assert "nan on one side" in out
    assert "missing" in out
    assert "7 of 7" in out
    assert "0 tensors are the same, 5 are not" in out


def test_file_has_whole_names_of_tensors(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")  # nobody says how wide it is, as in a file
    other = shutil.copytree(run_dir, tmp_path / "other")
    name = "optimizer/adam/" + "functional_1_" * 6 + "momentum"
    save(CheckpointStore(other), {name: np.zeros(2)}, header=Header("x", 1, 9))

    _, out, _ = holdfast("inspect", run_dir, "--diff", run_dir, other)

    assert name in out


def test_narrow_terminal_breaks_and_cuts_no_name(
    holdfast: Holdfast, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")

    _, out, _ = holdfast("inspect", run_dir, "--diff", 4, 6)

    lines = out.splitlines()
    assert "…" not in out
    assert "optimizer/sgd/iterations" in lines
    assert "    float32[7]  28 B: 7 of 7 elements differ, by at most 2" in lines


def test_of_a_long_list_the_first_are_shown_and_json_has_all(
    holdfast: Holdfast, run_dir: Path
) -> None:
    numbers = list(range(1000, 1624))
    cursor = {"seed": 0, "random states": {"python": numbers}}
    header = Header("00aa11bb22cc33dd", 1, 8)
    save(CheckpointStore(run_dir), {"x": np.zeros(2)}, header=header, cursor=cursor)

    _, out, _ = holdfast("inspect", run_dir, "--full")
    _, whole, _ = holdfast("inspect", run_dir, "--json")

    assert "random states=(python=(1000, 1001, 1002, 1003, and 620 more))" in out
    assert json.loads(whole)["step"]["cursor"]["random states"]["python"] == numbers


def test_run_is_the_same_as_its_copy(holdfast: Holdfast, run_dir: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run_dir, tmp_path / "other")

    code, out, _ = holdfast("inspect", run_dir, "--diff", 6, other)

    assert (code, out) == (0, "4 tensors are the same, 0 are not\n")


@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        (["--diff", "4", "5"], 2, "has no step 5"),
        (["--diff", "4", "nowhere"], 2, "nowhere does not exist"),
        (["--diff", "4", "6", "--step", "4"], 2, "exclude each other"),
    ],
)
def test_bad_comparisons_are_one_sentence(
    argv: list[str], code: int, complaint: str, holdfast: Holdfast, run_dir: Path
) -> None:
    found, out, err = holdfast("inspect", run_dir, *argv)

    assert (found, out) == (code, "")
    assert complaint in err


verify_file = importlib.import_module("holdfast.runtime.commands.checkpoints")


def _shard(run_dir: Path, step: int, index: int = 0) -> Path:
    return run_dir / f"checkpoints/step-{step:012d}/shard-{index:05d}-of-00002.h5"


def _manifest(run_dir: Path, step: int) -> Path:
    return run_dir / f"checkpoints/step-{step:012d}/MANIFEST.json"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_all_steps_are_verified_by_default(holdfast: Holdfast, run_dir: Path) -> None:
    code, out, _ = holdfast("verify", run_dir)

    assert code == 0
    assert [line.partition(",")[0] for line in out.splitlines()] == [
        "step 6: valid",
        "step 4: valid",
    ]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: _flip(_shard(run, 6)), "have a wrong digest"),
        (lambda run: os.truncate(_shard(run, 6, 1), 99), "shard 1 has 99 of "),
        (lambda run: _shard(run, 6, 1).unlink(), "shard-00001-of-00002.h5: No such file"),
        (lambda run: os.truncate(_manifest(run, 6), 99), "damaged or cut short"),
        (lambda run: _manifest(run, 6).unlink(), "MANIFEST.json: No such file"),
    ],
)
def test_damage_is_exit_1_and_one_line_with_the_reason(
    damage: Callable[[Path], None], reason: str, holdfast: Holdfast, run_dir: Path
) -> None:
    damage(run_dir)

    code, out, err = holdfast("verify", run_dir, "--all")

    newest, older = out.splitlines()
    assert code == 1
    assert f"`holdfast repair {run_dir} --from COPY`, or remove {run_dir}/checkpoints/" in err
    assert err.endswith("step-000000000006\n")
    assert newest.startswith("step 6: not valid: ")
    assert reason in newest
    assert older.startswith("step 4: valid")


def test_one_step_is_judged_alone(holdfast: Holdfast, run_dir: Path) -> None:
    _flip(_shard(run_dir, 6))

    code, out, _ = holdfast("verify", run_dir, "--step", 4)

    assert code == 0
    assert out.count("\n") == 1


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_bad_requests_are_one_sentence_and_exit_2(
    command: str, holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for argv, complaint in (
        ([tmp_path / "nowhere"], "nowhere does not exist"),
        ([tmp_path / "empty"], "empty is no run: it has no RUN.json"),
        ([run_dir, "--step", 5], "has no step 5; it has 6, 4"),
        ([run_dir, "--step", "x"], "'x' is not a valid integer"),
    ):
        code, out, err = holdfast(command, *argv)

        assert (code, out) == (2, "")
        assert complaint in err


def test_step_that_the_job_removes_meanwhile_is_not_damaged(
    holdfast: Holdfast, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_and_verify(store: CheckpointStore, step: int, **options: Any) -> StepCheck:
        if step == 4:
            shutil.rmtree(store.directory / "step-000000000004")
        return verify_step(store, step, **options)

    monkeypatch.setattr(verify_file, "verify_step", remove_and_verify)

    code, out, _ = holdfast("verify", run_dir)

    assert code == 0
    assert out.splitlines()[1] == "step 4: removed meanwhile"


def test_step_and_all_exclude_each_other(holdfast: Holdfast, run_dir: Path) -> None:
    assert holdfast("verify", run_dir, "--all", "--step", 4)[0] == 2


@pytest.fixture
def mirror(run_dir: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run_dir, tmp_path / "mirror")


def _files(run_dir: Path, step: int) -> list[Path]:
    return sorted((run_dir / f"checkpoints/step-{step:012d}").iterdir())


def test_every_damaged_step_is_made_whole(holdfast: Holdfast, run_dir: Path, mirror: Path) -> None:
    manifest, shard = _files(run_dir, 6)[:2]
    _flip(manifest)
    shard.unlink()
    _flip(_files(run_dir, 4)[2])

    code, out, _ = holdfast("repair", run_dir, "--from", mirror)

    assert code == 0
    newest, older = out.splitlines()
    assert newest.startswith(
        f"step 6: mended and verified, MANIFEST.json, {shard.name} from {mirror}; the damaged one "
        "is now .bad-000000000006-"
    )
    assert older.startswith(f"step 4: mended and verified, {shard.name[:-18]}")
    assert "in shard 1 have a wrong digest" in older
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
    assert f"step-000000000006 has {_files(mirror, 4)[1].name} whole" in newest
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


def test_run_that_a_job_owns_is_left_to_it(holdfast: Holdfast, run_dir: Path, mirror: Path) -> None:
    lease = RunDirectory(run_dir).acquire_lease()
    try:
        code, _, err = holdfast("repair", run_dir, "--from", mirror)
    finally:
        lease.release()

    assert code == 76
    assert "belongs to another job" in err


def test_bad_repairs_are_one_sentence_and_exit_2(
    holdfast: Holdfast, run_dir: Path, mirror: Path, tmp_path: Path
) -> None:
    for argv, complaint in (
        ([run_dir], "Missing option '--from'"),
        ([run_dir, "--from", run_dir], "itself; give another copy"),
        ([run_dir, "--from", tmp_path / "nowhere"], "nowhere does not exist"),
        ([run_dir, "--from", mirror, "--step", 5], "mirror has no step 5; it has 6, 4"),
    ):
        code, _, err = holdfast("repair", *argv)

        assert code == 2
        assert complaint in err


Fail = Callable[[str, int], None]

NUMBERS = sorted(TRANSIENT)


def _name(number: int) -> str:
    return errno.errorcode[number]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Let each opening of a checkpoint's file fail whose path has a word in it."""
    plain, listing = LocalFileSystem.open_read, LocalFileSystem.list

    def strike(word: str, number: int) -> None:
        def check(path: Path) -> None:
            if word in str(path):
                raise OSError(number, os.strerror(number))

        def open_read(files: LocalFileSystem, path: Path) -> int:
            check(path)
            return plain(files, path)

        def names(files: LocalFileSystem, path: Path) -> Any:
            check(path)
            return listing(files, path)

        monkeypatch.setattr(LocalFileSystem, "open_read", open_read)
        monkeypatch.setattr(LocalFileSystem, "list", names)

    return strike


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
def test_verify_tells_unread_steps_from_damaged_ones(
    holdfast: Holdfast, run_dir: Path, fail: Fail, number: int
) -> None:
    fail("step-000000000006/shard", number)

    code, out, err = holdfast("verify", run_dir)

    assert code == os.EX_TEMPFAIL
    assert "step 6: could not be read, and is not known to be damaged: cannot open" in out
    assert f"({_name(number)})" in out
    assert "step 4: valid" in out
    assert err == ""


def test_verify_of_a_damaged_and_an_unread_step_says_damaged(
    holdfast: Holdfast, run_dir: Path, fail: Fail
) -> None:
    (run_dir / "checkpoints/step-000000000004/MANIFEST.json").write_text("{}")
    fail("step-000000000006", errno.EIO)

    code, out, err = holdfast("verify", run_dir)

    assert code == 1
    assert "step 4: not valid" in out
    assert "step 6: could not be read" in out
    assert "remove " in err
    assert "step-000000000004" in err


def test_inspect_says_could_not_be_read(holdfast: Holdfast, run_dir: Path, fail: Fail) -> None:
    fail("step-000000000006", errno.ESTALE)

    code, out, err = holdfast("inspect", run_dir)
    _, document, _ = holdfast("inspect", run_dir, "--step", 4, "--json")

    newest = json.loads(document)["steps"][0]
    assert code == os.EX_TEMPFAIL
    assert "could not be read" in out
    assert "damaged" not in out
    assert "checkpoint step 6 could not be read: " in err
    assert "it is not known to be damaged" in err
    assert newest["damage"] is None
    assert "(ESTALE)" in newest["unread"]


def test_export_of_an_unread_step_can_be_tried_again(
    holdfast: Holdfast, run_dir: Path, fail: Fail, tmp_path: Path
) -> None:
    fail("step-000000000006/shard", errno.EMFILE)

    code, _, err = holdfast("export", run_dir, "--to", tmp_path / "w.npz")

    assert code == os.EX_TEMPFAIL
    assert "checkpoint step 6 could not be read" in err
    assert "use an older step" not in err
    assert not (tmp_path / "w.npz").exists()


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_steps_that_cannot_be_listed_just_now_are_not_absent(
    holdfast: Holdfast, run_dir: Path, fail: Fail, command: str
) -> None:
    fail("checkpoints", errno.EIO)

    code, _, err = holdfast(command, run_dir)

    assert code == os.EX_TEMPFAIL
    assert "cannot list" in err


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
@pytest.mark.parametrize("command", ["verify", "inspect", "report", "status"])
def test_record_or_journal_that_cannot_be_read_just_now_is_no_usage(
    holdfast: Holdfast,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    number: int,
) -> None:
    def fail(folder: int, path: Path, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files_module, "_open_name", fail)

    code, _, err = holdfast(command, run_dir)

    assert code == os.EX_TEMPFAIL
    assert "nothing is known to be damaged" in err
    assert f"({_name(number)})" in err
