"""The last lines of ``ci/test`` and ``ci/steady``: which tests have failed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

FAILED = Path(__file__).parents[2] / "ci" / "failed"


@pytest.mark.parametrize(
    ("record", "tests"),
    [
        ("", []),
        ("began a::x\ntook 0.100 a::x\nended a::x\n", []),
        ("began a::x\nfailed a::x\nended a::x\n", ["a::x"]),
        ("began a::x\nfailed a::x\nfailed a::x\nended a::x\n", ["a::x"]),
        ("began a::x\nended a::x\nbegan a::y[1 2]\n", ["a::y[1 2]"]),
        ("began a::x\nfailed a::x\nended a::x\nbegan a::y\n", ["a::x", "a::y"]),
        ("failed a.py\n", ["a.py"]),
    ],
    ids=["empty", "passed", "failed", "twice", "killed", "failed and killed", "import"],
)
def test_failed_tests_are_named_once(tmp_path: Path, record: str, tests: list[str]) -> None:
    path = tmp_path / "record"
    path.write_text(record)

    done = subprocess.run([FAILED, path], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == tests
