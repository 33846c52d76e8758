"""The tutorials are true: their scripts and commands run as they stand, in their order.

A block of Python that begins with ``# NAME.py`` is that file, and a block of ``sh`` is typed in one
directory.  Blocks of ``text`` are shown, and not typed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster, why_not

_PAGES = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
_WITHIN_S = 600.0

Shell = Callable[[str], subprocess.CompletedProcess[str]]


def blocks(page: str) -> list[tuple[str, str]]:
    """Return the language and the text of each block of a page."""
    return _BLOCK.findall((_PAGES / f"{page}.md").read_text(encoding="utf-8"))


def follow(page: str, directory: Path, shell: Shell) -> list[str]:
    """Do what a page says; return what each block of commands has printed."""
    printed = []
    for language, text in blocks(page):
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", text)
            assert name is not None, text
            (directory / name[1]).write_text(text, encoding="utf-8")
        elif language == "sh":
            done = shell(text)
            assert done.returncode == 0, f"{text}\n{done.stdout}"
            printed.append(done.stdout)
    return printed


@pytest.fixture
def here(tmp_path: Path) -> Shell:
    """Types commands in a directory of this machine."""
    environment = os.environ | {"PATH": _PATH, "COLUMNS": "120"}

    def type_in(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", text],
            cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, timeout=_WITHIN_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip

    return type_in


def digests(text: str) -> list[str]:
    return re.findall(r"completed step \d+, state sha256 (\w{64})", text)


@pytest.mark.extended  # ci/demo strikes the same job
@pytest.mark.mpi
@pytest.mark.tensorflow
def test_first_run_and_its_kills_end_with_one_digest(tmp_path: Path, here: Shell) -> None:
    plain, one_death, all_dead, again, report = follow("tutorials/first-run", tmp_path, here)

    (digest,) = digests(plain)
    assert digests(one_death) == digests(all_dead) == digests(again) == [digest]
    assert "worker 1 died" in one_death
    assert digest in report


@pytest.mark.mpi
@pytest.mark.tensorflow
@pytest.mark.extended
@pytest.mark.parametrize(
    ("page", "before", "says"),
    [
        ("tutorials/keras-script", None, ["worker 0 died"]),
        ("tutorials/watch", "tutorials/first-run", ["checkpoint"]),
        ("tutorials/trouble", None, ["exit code 1", "exit code 2", "small.py", "previous-1"]),
        ("install", None, ["Python"]),
    ],
)
def test_page_says_what_happens(
    tmp_path: Path, here: Shell, page: str, before: str | None, says: list[str]
) -> None:
    if before is not None:
        write_scripts(before, tmp_path)

    printed = "\n".join(follow(page, tmp_path, here))

    assert [text for text in says if text not in printed] == [], printed


def write_scripts(page: str, directory: Path) -> None:
    follow(page, directory, lambda text: subprocess.CompletedProcess(text, 0, "", ""))


@pytest.fixture
def on_a(tmp_path: Path) -> Iterator[Shell]:
    """Types commands on host a of two, between which a remote shell goes."""
    if why_not() is not None:
        pytest.skip(f"hosts of its own: {why_not()}")
    with Cluster(tmp_path, names=("a", "b")) as cluster:
        environment = os.environ | {"PATH": _PATH, "HOLDFAST_RSH": cluster.rsh}

        def type_in(text: str) -> subprocess.CompletedProcess[str]:
            line = ["bash", "-e", "-c", f"exec 2>&1\n{text}"]
            return cluster.run("a", line, env=environment, cwd=tmp_path, check=False)

        yield type_in


@pytest.mark.mpi
@pytest.mark.tensorflow
@pytest.mark.extended
def test_two_machines_have_one_digest_when_one_is_lost(tmp_path: Path, on_a: Shell) -> None:
    write_scripts("tutorials/first-run", tmp_path)

    doctor, plain, struck = follow("tutorials/two-machines", tmp_path, on_a)

    assert "b" in doctor
    (digest,) = digests(plain)
    assert digests(struck) == [digest]
