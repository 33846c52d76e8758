from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.checkpoint.repair import StepCheck, verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.cli.terminal import ByteProgress

verify_file = importlib.import_module("holdfast.runtime.cli.checkpoints")
Holdfast = Callable[..., tuple[int, str, str]]


def _shard(run_dir: Path, step: int, index: int = 0) -> Path:
    return run_dir / f"checkpoints/step-{step:012d}/shard-{index:05d}-of-00002.h5"


def _manifest(run_dir: Path, step: int) -> Path:
    return run_dir / f"checkpoints/step-{step:012d}/MANIFEST.json"


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096] ^= 1
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
        ([tmp_path / "nowhere"], "nowhere is no run: it is no directory"),
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


def test_checkpoint_of_another_run_is_not_valid(holdfast: Holdfast, run_dir: Path) -> None:
    path = run_dir / "RUN.json"
    path.write_text(path.read_text().replace("00aa11bb22cc33dd", "another"))

    code, out, _ = holdfast("verify", run_dir, "--step", 4)

    assert code == 1
    assert "belongs to run 00aa11bb22cc33dd, not to another" in out


@pytest.mark.parametrize(
    ("seconds", "is_terminal", "is_shown"), [(5, True, True), (0.5, True, False), (5, False, False)]
)
def test_bar_is_shown_to_people_who_wait(
    seconds: float, *, is_terminal: bool, is_shown: bool, tmp_path: Path
) -> None:
    with (tmp_path / "terminal").open("w+") as file:
        console = Console(file=file, force_terminal=is_terminal)
        times = iter([0.0, seconds])
        with ByteProgress("reading", 10, console=console, clock=lambda: next(times)) as progress:
            progress(10)
        file.seek(0)

        assert ("reading" in file.read()) is is_shown
