"""`holdfast sbatch`, with a program of ours in place of Slurm's."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import holdfast_code

SBATCH = """#!/bin/sh
cat >> "$0.scripts"
echo "$(( $(grep -c '^exec' "$0.scripts") + 100 ));cluster"
"""


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory in which sbatch lies."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").write_text(SBATCH)
    (programs / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return programs


def test_dry_run_prints_the_script_and_submits_nothing(
    slurm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = holdfast_code(
        "sbatch", "-n", "4", "--dry-run", "-pshort", "--", "run", "--seed", "3", "train.py", "-h"
    )

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert lines[0] == "#!/bin/bash"
    assert {"#SBATCH -n 4", "#SBATCH -pshort", "#SBATCH --requeue"} <= set(lines)
    assert lines[-1] == "exec holdfast run --seed 3 train.py -h"
    assert not (slurm / "sbatch.scripts").exists()


def test_more_workers_than_tasks_are_told_beside_the_script(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        holdfast_code("sbatch", "--ntasks=4", "--dry-run", "--", "run", "-n", "8", "train.py") == 0
    )

    said = capsys.readouterr()
    assert said.err.startswith("holdfast sbatch: 8 workers will share 4 cores")
    assert said.out.startswith("#!/bin/bash")


@pytest.mark.process
@pytest.mark.parametrize("chain", [["--chain", "3"], ["--chain=3"]])
def test_chain_is_submitted_link_by_link(
    slurm: Path, capsys: pytest.CaptureFixture[str], chain: list[str]
) -> None:
    code = holdfast_code("sbatch", "--time=60", *chain, "--", "run", "train.py")

    scripts = (slurm / "sbatch.scripts").read_text()
    assert code == 0, capsys.readouterr().err
    assert capsys.readouterr().out.split("\n") == [
        *(f"submitted batch job {job}" for job in (101, 102, 103)), ""
    ]  # fmt: skip
    names = {line for line in scripts.splitlines() if "HOLDFAST_CHAIN" in line}
    assert (scripts.count("--dependency=singleton"), len(names)) == (3, 1)


@pytest.mark.process
def test_refusal_of_slurm_is_one_line(slurm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'error: no such partition' >&2\nexit 1\n")

    assert holdfast_code("sbatch", "-p", "none", "--", "run", "train.py") == 1
    assert "sbatch: error: no such partition" in capsys.readouterr().err


def test_without_slurm_a_line_says_so(
    slurm: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (slurm / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(slurm))  # Slurm may be installed here

    assert holdfast_code("sbatch", "--", "run", "train.py") == 1
    assert "sbatch cannot be started" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["-n", "4"], "submits `holdfast run`"),
        (["--", "verify", "x"], "submits `holdfast run`"),
        (["--", "run", "--no-such", "train.py"], "no such option"),
        (["--", "run", "-n", "many", "train.py"], "is not a valid integer"),
        (["--", "run", "nosuch.py"], "nosuch.py does not exist; give the path"),
        (["--no-requeue", "--", "run", "train.py"], "give --no-requeue after `run` as well"),
        (["--", "run"], "Missing argument"),
        (["--chain", "0", "--", "run", "train.py"], "--chain must be at least 1"),
    ],
)
def test_request_that_makes_no_sense_is_not_submitted(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    assert holdfast_code("sbatch", *argv) == 2
    assert words in capsys.readouterr().err
