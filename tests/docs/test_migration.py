"""The scripts in docs/migration: what a diff leaves behind runs, and no foreign line is left in it.

A diff in a page is a whole script: lines that go, lines that come, and lines that stay.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from suite_files import other_numbers
from suite_table import ROUNDING

from holdfast.testing import JobRequest, JobRun, start_job

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "migration"
PAGES = {page.stem: page for page in sorted(FOLDER.glob("*.md")) if page.stem != "README"}
FOREIGN = ("horovod", "tf.distribute", "TF_CONFIG", "MonitoredTrainingSession", "holdfast")
RESULT = "model.weights.h5"
TUTORIAL = "tf-distribute"
OTHERS = [name for name in PAGES if name != TUTORIAL]

_DIFF = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def script(page: Path, sign: str) -> str:
    """Return the script before (``-``) or after (``+``) the diff of a page is applied."""
    (diff,) = _DIFF.findall(page.read_text(encoding="utf-8"))
    lines = diff.splitlines()
    assert all(line[:1] in ("", " ", "+", "-") for line in lines)
    return "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("", " ", sign))


def test_every_page_is_in_the_list_of_pages() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")

    assert set(PAGES) == set(re.findall(r"\]\((.+?)\.md\)", index))


@pytest.mark.parametrize("name", PAGES)
def test_both_sides_of_a_diff_are_whole_scripts(name: str) -> None:
    before, after = script(PAGES[name], "-"), script(PAGES[name], "+")

    ast.parse(before)
    ast.parse(after)
    assert any(word in before for word in FOREIGN)
    assert not any(word in after for word in FOREIGN)


@pytest.mark.tensorflow
@pytest.mark.extended  # the tutorial runs in plain Python, too
@pytest.mark.parametrize("name", OTHERS)
def test_what_a_diff_leaves_runs_with_plain_python(name: str, tmp_path: Path) -> None:
    run_plain(name, tmp_path)

    assert (tmp_path / RESULT).exists()


@pytest.mark.mpi
@pytest.mark.tensorflow
@pytest.mark.extended  # the tutorial runs so, too
@pytest.mark.parametrize("name", OTHERS)
def test_what_a_diff_leaves_runs_on_two_workers(name: str, tmp_path: Path) -> None:
    job = run_on_two_workers(name, tmp_path)

    assert len(job.report.epochs) == 3
    assert (tmp_path / RESULT).exists()
    assert job.leftovers == ()


@pytest.mark.extended  # the pages' own scripts run in ci/extended, too
@pytest.mark.mpi
@pytest.mark.tensorflow
def test_what_tensorflows_strategy_no_longer_trains_ends_on_two_workers_as_on_one(
    tmp_path: Path,
) -> None:
    """The tutorial of MultiWorkerMirroredStrategy fails under Keras 3 (keras issue 20585)."""
    run_plain(TUTORIAL, tmp_path / "plain")
    run_on_two_workers(TUTORIAL, tmp_path / "two")

    files = ({RESULT: tmp_path / way / RESULT} for way in ("two", "plain"))
    assert list(other_numbers(*files, ROUNDING)) == []


def write_script(name: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script(PAGES[name], "+"), encoding="utf-8")


def run_plain(name: str, folder: Path) -> None:
    write_script(name, folder)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def run_on_two_workers(name: str, folder: Path) -> JobRun:
    write_script(name, folder)
    request = JobRequest(
        script="train.py",
        run_dir="run",
        workers=2,
        options=("--threads", "1", "--heartbeat-timeout", "30"),
        directory=folder,
    )
    with start_job(request) as running:
        job = running.wait()
    assert job.exit_code == 0, job.stderr
    return job
