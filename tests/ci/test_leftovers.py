"""The guard that watches all other tests: what it finds, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import run_record

SUPPORT = Path(run_record.__file__).parent
PREAMBLE = """
import os, pathlib, subprocess, sys, tempfile
import pytest

MEMORY = pathlib.Path("/dev/shm")
"""

pytestmark = pytest.mark.process


def run(folder: Path, body: str) -> tuple[str, list[str]]:
    """Run a test module with the plugins; return its summary, and its record without times."""
    module = folder / "test_some.py"
    module.write_text(PREAMBLE + body)
    environment = {**os.environ, run_record.VARIABLE: str(folder / "record")}
    environment.pop("PYTEST_XDIST_WORKER", None)  # it is a run of its own
    line = [sys.executable, "-m", "pytest", "-p", "leftovers", "-p", "run_record", "-p"]
    line += ["no:cacheprovider", "--rootdir", str(folder), "-q", "-rN", str(module)]
    line += ["--basetemp", str(folder / "basetemp"), "-o", "markers=process: starts some"]
    done = subprocess.run(
        line,
        env={**environment, "PYTHONPATH": str(SUPPORT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    lines = (folder / "record").read_text().splitlines()
    return done.stdout, [line for line in lines if not line.startswith("took ")]


def test_test_that_leaves_something_fails_and_no_other_is_blamed(tmp_path: Path) -> None:
    leaks = {
        "directory": ("tempfile.mkdtemp(prefix='forgotten-')", "leftovers/forgotten-"),
        "segment": (
            "pathlib.Path(os.environ['TMPDIR'], 'sm_segment.h').touch()",
            "sm_segment.h",
        ),
        "zombie": ("os.fork() or os._exit(0)", "which nobody waited for"),
    }
    body = """
def test_clean(tmp_path):
    (tmp_path / "file").touch()
    with tempfile.TemporaryDirectory():
        subprocess.run(["true"], check=True)
"""
    for name, (leak, _) in leaks.items():
        body += f"def test_{name}():\n    {leak}\n\ndef test_after_{name}():\n    pass\n\n"
    said, record = run(tmp_path, body)

    assert "7 passed, 3 errors" in said
    for name, (_, named) in leaks.items():
        (line,) = (each for each in said.splitlines() if f"test_{name} has left behind: " in each)
        assert named in line
    assert [line for line in record if line.startswith("failed")] == [
        f"failed test_some.py::test_{name}" for name in leaks
    ]
    assert record[:2] == ["began test_some.py::test_clean", "ended test_some.py::test_clean"]


def test_process_of_another_session_is_found_by_its_mark_and_killed(tmp_path: Path) -> None:
    """Its parent has ended, so it is nobody's child."""
    body = """
import leftovers
leftovers.ENDS_WITHIN_S = 0.0
START = '''
import subprocess
process = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
print(process.pid)
'''

@pytest.mark.process
def test_leaks():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", START], stdout=subprocess.PIPE)
    pathlib.Path("pid").write_bytes(done.stdout)
"""
    said, _ = run(tmp_path, body)

    pid = int((tmp_path / "pid").read_text())
    assert f"test_leaks has left behind: process {pid} sleep 600" in said
    assert not Path(f"/proc/{pid}").exists() or _is_zombie(pid)


def test_process_that_is_about_to_end_is_waited_for(tmp_path: Path) -> None:
    body = """
START = '''
import subprocess
subprocess.Popen(["sh", "-c", "read line < fifo"], start_new_session=True)
'''

@pytest.fixture
def told():
    os.mkfifo("fifo")
    yield
    with open("fifo", "w") as fifo:
        fifo.write("end now")

@pytest.mark.process
def test_waits(told):
    subprocess.run([sys.executable, "-W", "ignore", "-c", START], check=True)
"""
    said, _ = run(tmp_path, body)

    assert "1 passed" in said
    assert "left behind" not in said


def test_shared_memory_of_a_process_of_the_test_is_its_own_and_that_of_others_is_not(
    tmp_path: Path,
) -> None:
    body = """
def test_leaks():
    process = subprocess.Popen(["true"])
    process.wait()
    (MEMORY / f"holdfast-{process.pid}-mine").mkdir()
    (MEMORY / f"holdfast-{os.getppid()}-other").mkdir()
"""
    others = Path(f"/dev/shm/holdfast-{os.getpid()}-other")
    try:
        said, _ = run(tmp_path, body)
        assert others.exists()
    finally:
        others.rmdir()

    assert "-mine" in said
    assert "-other" not in said
    assert list(Path("/dev/shm").glob("holdfast-*-mine")) == []


def test_run_that_is_killed_in_a_test_has_written_down_its_name(tmp_path: Path) -> None:
    _, record = run(tmp_path, "def test_one():\n    pass\n\ndef test_two():\n    os._exit(9)\n")

    assert record[-1] == "began test_some.py::test_two"


def test_run_that_is_told_to_end_cleans_up_first(tmp_path: Path) -> None:
    body = """
import signal

@pytest.fixture
def process():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()

def test_waits(process):
    pathlib.Path("pid").write_text(str(process.pid))
    os.kill(os.getpid(), signal.SIGTERM)
    process.wait()
"""
    said, _ = run(tmp_path, body)

    assert "KeyboardInterrupt" in said
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
