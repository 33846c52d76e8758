"""A job with a key makes checkpoints that it can prove, and resumes from no others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from extended import extended
from workload import EVEN, LONG, SCRIPT, Undisturbed, assert_refused, assert_whole, request_of

from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.signature import KeyFile, Signature, read_key
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import JobRun, start_job

pytestmark = pytest.mark.mpi


def make_key(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(name.encode() * 8)
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The run's key and another one."""
    folder = tmp_path_factory.mktemp("keys")
    return make_key(folder, "mine"), make_key(folder, "other")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, Path]) -> Path:
    """The directory of a run with a key that was stopped with a checkpoint."""
    run_dir = tmp_path_factory.mktemp("stopped") / "run"
    options = ["--key-file", str(keys[0])]
    with start_job(request_of(LONG, run_dir, workers=3, options=options)) as job:
        job.wait_for("checkpoint")
        job.signal(signal.SIGTERM)
        assert job.wait().exit_code == 75, job.stderr
    return run_dir


def resume(run_dir: Path, key: Path | None, **more: str) -> JobRun:
    environment = more if key is None else {"HOLDFAST_KEY_FILE": str(key), **more}
    paced = request_of(LONG, run_dir, workers=2, environment=environment)
    with start_job(replace(paced, argv=[*paced.argv, "--pause-ms", "0"])) as job:
        return job.wait()


def assert_signed(run_dir: Path, key: Path) -> None:
    store = CheckpointStore(run_dir, key=read_key(key))
    assert store.steps()
    verdicts = [verify_step(store, step) for step in store.steps()]
    assert {(v.is_valid, v.signature) for v in verdicts} == {(True, Signature.VERIFIED)}


def test_run_with_a_key_is_signed_resumed_and_ends_with_the_same_bytes(
    tmp_path: Path, undisturbed: Undisturbed, stopped: Path, keys: tuple[Path, Path]
) -> None:
    run_dir = shutil.copytree(stopped, tmp_path / "run")
    assert_signed(run_dir, keys[0])

    job = resume(run_dir, keys[0])

    assert_whole(job, LONG, undisturbed(LONG))
    assert len(job.events("restored")) == 1
    assert_signed(run_dir, keys[0])
    secret = keys[0].read_bytes()
    for path in (run_dir / "RUN.json", run_dir / "journal.jsonl"):
        assert secret not in path.read_bytes()
        assert secret.hex().encode() not in path.read_bytes()


def test_run_is_not_resumed_with_another_key_or_none(
    tmp_path: Path, stopped: Path, keys: tuple[Path, Path]
) -> None:
    run_dir = shutil.copytree(stopped, tmp_path / "run")
    mine, other = (KeyFile.of(key).key_id for key in keys)

    assert_refused(resume(run_dir, None), 2, f"begun with key {mine}", "--key-file")
    assert_refused(resume(run_dir, keys[1]), 2, mine, other)


def test_forged_checkpoint_is_skipped_for_an_older_one_that_is_signed(
    tmp_path: Path, undisturbed: Undisturbed, stopped: Path, keys: tuple[Path, Path]
) -> None:
    """The signature alone is taken off: every digest is right."""
    run_dir = shutil.copytree(stopped, tmp_path / "run")
    newest, older = CheckpointStore(run_dir).steps()[:2]
    manifest = CheckpointStore(run_dir).directory / f"step-{newest:012d}" / "MANIFEST.json"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:2]))

    job = resume(run_dir, keys[0])

    assert_whole(job, LONG, undisturbed(LONG))
    assert [record["step"] for record in job.events("restored")] == [older]
    assert [record["step"] for record in job.events("rejected")] == [newest]


@pytest.mark.parametrize("is_forged", [extended(False), True])
def test_signed_checkpoint_is_mended_only_from_what_is_signed(
    tmp_path: Path, stopped: Path, keys: tuple[Path, Path], *, is_forged: bool
) -> None:
    run_dir = shutil.copytree(stopped, tmp_path / "run")
    copy = shutil.copytree(stopped, tmp_path / "copy")
    newest, older = CheckpointStore(run_dir).steps()[:2]
    name = f"step-{newest:012d}"
    shutil.rmtree(CheckpointStore(run_dir).directory / name)
    if is_forged:
        manifest = CheckpointStore(copy).directory / name / "MANIFEST.json"
        first, second, third = manifest.read_bytes().splitlines(keepends=True)
        manifest.write_bytes(first + second + third[:17] + b"0" * 64 + b"\n")

    job = resume(run_dir, keys[0], HOLDFAST_REPAIR_FROM=str(copy))

    assert job.exit_code == 0, job.stderr
    assert [record["step"] for record in job.events("restored")] == [older if is_forged else newest]
    assert bool(job.events("mend_failed")) == is_forged
    assert_signed(run_dir, keys[0])


def test_run_whose_record_was_stripped_of_its_key_is_not_resumed(
    tmp_path: Path, stopped: Path, keys: tuple[Path, Path]
) -> None:
    run_dir = shutil.copytree(stopped, tmp_path / "run")
    record = json.loads((run_dir / "RUN.json").read_text())
    del record["key_id"]
    (run_dir / "RUN.json").write_text(json.dumps(record))

    assert_refused(resume(run_dir, keys[0]), 2, "names no key", "the file was changed")


@pytest.mark.extended
def test_what_dead_workers_have_left_in_memory_becomes_a_signed_checkpoint(
    tmp_path: Path, undisturbed: Undisturbed, keys: tuple[Path, Path]
) -> None:
    """Saves are signed above, and what dead workers have left is saved in test_snapshots.py."""
    faults = [f"kill worker={worker} step=6 site=reduce" for worker in range(4)]
    options = ["--key-file", str(keys[0])]
    run_dir = tmp_path / "run"
    with start_job(request_of(EVEN, run_dir, workers=4, faults=faults, options=options)) as running:
        job = running.wait()

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert [record["step"] for record in job.events("restored")] == [5]
    assert_signed(run_dir, keys[0])


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [(b"x" * 31, 0o600, "has 31 bytes"), (b"x" * 32, 0o644, "has mode 0644")],
)
def test_bad_key_file_is_refused_before_anything_starts(
    tmp_path: Path, content: bytes, mode: int, complaint: str
) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)
    key.chmod(mode)

    assert_refused(resume(tmp_path / "run", key), 2, complaint, "chmod 600")
    assert not (tmp_path / "run").exists()


@pytest.mark.extended
def test_script_that_nobody_launched_has_the_key_of_its_environment(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    """Above, jobs have a key."""
    command = [sys.executable, str(SCRIPT), *EVEN.argv]
    environment = {**os.environ, "HOLDFAST_RUN_DIR": str(tmp_path / "run")}

    def run(key: Path | None) -> subprocess.CompletedProcess[str]:
        more = {} if key is None else {"HOLDFAST_KEY_FILE": str(key)}
        return subprocess.run(
            command, env=environment | more, capture_output=True, text=True, check=False
        )

    assert run(keys[0]).returncode == 0
    assert_signed(tmp_path / "run", keys[0])
    for key in (None, keys[1]):
        done = run(key)
        assert (done.returncode, done.stderr.count("was begun with key")) == (2, 1)
