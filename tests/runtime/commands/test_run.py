from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from commands import holdfast_code

from holdfast.runtime.errors import ExitCode
from holdfast.runtime.options.job_options import JobOptions


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[JobOptions]:
    """Stand in for the client: keep what it was asked for, and stop early."""
    asked: list[JobOptions] = []

    def run_job(config: JobOptions, **_: object) -> ExitCode:
        asked.append(config)
        return ExitCode.STOPPED_EARLY

    client = ModuleType("holdfast.runtime.head.client")
    client.run_job = run_job  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holdfast.runtime.head.client", client)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return asked


def test_every_option_reaches_the_job(asked: list[JobOptions], tmp_path: Path) -> None:
    numbers = "-n 4 --spares 1 --microbatches 12 --threads 2 --seed 7 --max-restarts 5"
    others = "--run-dir out --heartbeat-timeout 1.5 --preload numpy,h5py --mpiexec /opt/mpiexec"
    others += " --save-every 10min --initial w.npz"
    switches = "--fresh --strict --no-shrink -v"
    faults = ("--inject", "kill worker=2 step=30", "--inject", "stop worker=1 step=9 site=vote")

    holdfast_code("run", *f"{numbers} {others} {switches}".split(), *faults, "train.py")

    assert asked[0] == JobOptions(
        script=tmp_path / "train.py",
        run_dir=tmp_path / "out",
        workers=4,
        spares=1,
        microbatches=12,
        threads=2,
        seed=7,
        heartbeat_timeout_s=1.5,
        max_restarts=5,
        save_every="10min",
        initial=tmp_path / "w.npz",
        faults=("kill worker=2 step=30", "stop worker=1 step=9 site=vote"),
        preload=("numpy", "h5py"),
        mpiexec=Path("/opt/mpiexec"),
        fresh=True,
        strict=True,
        shrink=False,
        verbose=True,
    )


def test_what_follows_the_script_is_the_scripts(asked: list[JobOptions]) -> None:
    holdfast_code("run", "-n", "2", "--", "train.py", "-n", "9", "--fresh", "--", "x", "--help")

    assert asked[0].argv == ("-n", "9", "--fresh", "--", "x", "--help")
    assert asked[0].workers == 2
    assert not asked[0].fresh


def test_batch_job_tells_the_workers_unless_somebody_else_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "6", "SLURM_TASKS_PER_NODE": "6"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)

    assert holdfast_code("run", "--show-config", "train.py") == 0
    assert "workers = 6  # SLURM_NTASKS of Slurm job 7" in capsys.readouterr().out

    monkeypatch.setenv("HOLDFAST_WORKERS", "2")
    assert holdfast_code("run", "--show-config", "train.py") == 0
    assert "workers = 2  # HOLDFAST_WORKERS" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "stray", "before"),
    [
        ("-n 4", "-n 4", "-n 4 --fresh train.py"),
        (
            "--data x --run-dir=/r -n 4",
            "--run-dir=/r -n 4",
            "--run-dir=/r -n 4 --fresh train.py --data x",
        ),
        ("--again 4", "--again", "--again --fresh train.py 4"),
        ("--no-fit", "--no-fit", "--no-fit --fresh train.py"),
    ],
)
def test_options_behind_a_script_that_does_not_name_them_start_nothing(
    asked: list[JobOptions], capfd: pytest.CaptureFixture[str], argv: str, stray: str, before: str
) -> None:
    assert holdfast_code("run", "--fresh", "train.py", *argv.split()) == ExitCode.USAGE
    assert asked == []

    line = capfd.readouterr().err
    assert line == (
        f"holdfast: error: {stray} stands behind train.py, which does not name it; if it is meant "
        f"for holdfast, put it before: `holdfast run {before}`; if it is meant for train.py, put "
        f"-- before: `holdfast run --fresh -- train.py {argv}`\n"
    )
    for command in (before, f"--fresh -- train.py {argv}"):
        assert holdfast_code("run", *command.split()) == ExitCode.STOPPED_EARLY
    assert asked[1].argv == tuple(argv.split())


@pytest.mark.parametrize(
    ("files", "argv"),
    [
        ({"train.py": "add_argument('-n')"}, ["-n", "4"]),
        ({"train.py": "DEFINE_string('run_dir')"}, ["--run-dir", "x"]),
        ({"train.py": "import terms", "terms.py": "add_argument('--seed')"}, ["--seed", "7"]),
        (
            {"train.py": "from nets.cli import parse", "nets/cli.py": "def main(seed): ..."},
            ["--seed", "7"],
        ),
        ({}, ["--data", "n"]),
    ],
)
def test_options_that_a_script_or_a_module_of_it_names_are_the_scripts(
    asked: list[JobOptions],
    capfd: pytest.CaptureFixture[str],
    files: dict[str, str],
    argv: list[str],
) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)

    assert holdfast_code("run", "train.py", *argv) == ExitCode.STOPPED_EARLY

    assert asked[0].argv == tuple(argv)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "names", [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("PMI_SIZE", "PMI_RANK")]
)
def test_several_commands_of_mpiexec_are_refused_once(
    monkeypatch: pytest.MonkeyPatch,
    asked: list[JobOptions],
    capfd: pytest.CaptureFixture[str],
    names: tuple[str, str],
) -> None:
    size, rank = names
    monkeypatch.setenv("PMIX_SERVER_TMPDIR", "/")  # the session of an mpiexec that lives
    monkeypatch.setenv(size, "4")
    for number in ("0", "3"):
        monkeypatch.setenv(rank, number)
        assert holdfast_code("run", "train.py") == ExitCode.USAGE

    (line,) = capfd.readouterr().err.splitlines()
    assert "mpiexec has started this command 4 times" in line
    assert "`holdfast run -n 4 SCRIPT`" in line
    monkeypatch.setenv(size, "1")
    assert not asked
    assert holdfast_code("run", "train.py") == ExitCode.STOPPED_EARLY
