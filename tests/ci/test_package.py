"""What a user installs: a source archive and a wheel, each whole."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSION = importlib.metadata.version("holdfast-mpi")


@pytest.mark.process
def test_wheel_of_the_source_archive_runs(tmp_path: Path) -> None:
    """The wheel is built from the archive, so the archive has all that a build needs."""
    dist, site = tmp_path / "dist", tmp_path / "site"
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    archive = dist / f"holdfast_mpi-{VERSION}.tar.gz"
    wheel = dist / f"holdfast_mpi-{VERSION}-py3-none-any.whl"
    install = ["pip", "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run([sys.executable, "-m", *install], check=True, capture_output=True)

    environment = os.environ | {"PYTHONPATH": str(site)}
    program = "import holdfast; print(holdfast.__file__, holdfast.__version__)"
    here = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, check=True, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    command = subprocess.run(
        [str(site / "bin" / "holdfast"), "run", "--help"], env=environment, check=False, text=True,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}

    assert here.stdout.split() == [str(site / "holdfast" / "__init__.py"), VERSION]
    assert command.returncode == 0
    assert "--microbatches" in command.stdout
    wanted = {"README.md", "mkdocs.yml", "constraints.txt", "ci/test", "docs/index.md"}
    assert wanted <= names


def test_citation_names_this_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()

    assert f"version: {VERSION}" in lines


def test_recipes_copy_what_the_package_is_made_of() -> None:
    """Both images are built from the same files, all of which are there."""
    dockerfile = (ROOT / "recipes" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    definition = (ROOT / "recipes" / "holdfast.def").read_text(encoding="utf-8")
    copied = [word for line in dockerfile if line.startswith("COPY") for word in line.split()[1:-1]]

    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert [name for name in copied if f"    {name} /src/{name}\n" not in definition] == []
