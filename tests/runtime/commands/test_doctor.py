from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import holdfast_code

from holdfast.runtime.commands import doctor as doctor_file
from holdfast.runtime.commands.doctor import Diagnosis
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head import preconditions
from holdfast.runtime.host.launchers import LaunchTerms
from holdfast.runtime.host.mpi_trial import Trial, TrialOutcome
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.system.network import Interface, Loopback

WHOLE = "Python cores MPI MPI ULFM TensorFlow workers run"
"""What is examined, by the first words of the lines."""


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which all is well, and its mpiexec."""
    mpiexec = tmp_path / "mpiexec"
    _write_mpiexec(mpiexec, "mpiexec (Open MPI) 5.0.9")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_MPIEXEC", str(mpiexec))
    monkeypatch.setattr(doctor_file, "run_trial", _passing)
    _answer_import(monkeypatch, 0, "2.21.0\n", "")


def _write_mpiexec(path: Path, answer: str) -> None:
    path.write_text(f"#!/bin/sh\ncat <<'E'\n{answer}\nE\n")
    path.chmod(0o755)


def _passing(_library: object, _environment: object, trial: Trial, _terms: object) -> TrialOutcome:
    return TrialOutcome(trial)


def _answer_import(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str) -> None:
    def answer(command: list[str], *_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, out, err)

    monkeypatch.setattr(doctor_file, "answer_of", answer)


def _doctor(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str]]:
    return holdfast_code("doctor", *argv), capsys.readouterr().out.splitlines()


def _failures(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("FAIL")]


def _without_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (doctor_file, preconditions):
        monkeypatch.setattr(module, "loopback_state", lambda: Loopback.IS_DOWN)


def _without_ulfm(monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(_library: object, _environment: object, trial: Trial, _terms: object) -> TrialOutcome:
        return TrialOutcome(trial, "no Revoke" if trial.deaths else "")

    monkeypatch.setattr(doctor_file, "run_trial", dying)


def _with_mpiexec(answer: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda _: _write_mpiexec(Path("mpiexec"), answer)


def _without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    _answer_import(monkeypatch, 1, "", "Traceback\nImportError: libtensorflow.so: bad\n")


def _without_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(command: list[str], *_: object) -> subprocess.CompletedProcess[str]:
        lacks = ".script_setup" in " ".join(command)
        said = "Traceback\nModuleNotFoundError: No module named 'h'\n" if lacks else ""
        return subprocess.CompletedProcess(command, int(lacks), "2.21.0\n", said)

    monkeypatch.setattr(doctor_file, "answer_of", answer)


def _without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_file, "interfaces", tuple)


@pytest.mark.parametrize(
    ("change", "argv", "failure", "subjects"),
    [
        (None, "", "", WHOLE),
        (None, "--mpi --run-dir /proc/self/run", "", "MPI MPI ULFM"),
        (
            _without_loopback,
            "",
            "host          the loopback interface lo is down: `ip link set lo up`, then run again",
            "Python cores host MPI TensorFlow workers run",
        ),
        (None, "--mpi --mpiexec /nowhere/mpiexec", "MPI", "MPI"),
        (_without_ulfm, "--mpi", "ULFM          survivors cannot go on: no Revoke", "MPI MPI ULFM"),
        (
            _with_mpiexec("mpiexec (Open MPI) 5.0.11"),
            "--mpi",
            "MPI version   ",
            "MPI MPI ULFM MPI",
        ),
        (
            _with_mpiexec("HYDRA build details:\n  Version: 5.0.2"),
            "--mpi",
            "ULFM          MPICH has none; run jobs with --no-shrink",
            "MPI MPI ULFM",
        ),
        (
            _without_a_module,
            "",
            "workers       cannot import what they need: ModuleNotFoundError: No module named 'h'; "
            "install holdfast-mpi again",
            WHOLE,
        ),
        (
            _without_tensorflow,
            "",
            "TensorFlow    cannot be imported: ImportError: libtensorflow.so: bad; pip install "
            "tensorflow-cpu (scripts with a replica of their own do without)",
            WHOLE,
        ),
        (
            None,
            "--run-dir /proc/self/run",
            "run directory /proc/self/run cannot be used",
            WHOLE,
        ),
        (
            _without_network,
            "--mpi --network 10.9.0.0/16",
            "network       --network 10.9",
            "MPI network",
        ),
    ],
)
def test_what_is_amiss_is_told_and_the_rest_still_examined(
    change: Callable[[pytest.MonkeyPatch], None] | None,
    argv: str,
    failure: str,
    subjects: str,
    *,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if change is not None:
        change(monkeypatch)

    code, lines = _doctor(capsys, *argv.split())

    assert code == (ExitCode.USAGE if failure else ExitCode.DONE)
    assert [line[6:].split()[0] for line in lines if "device" not in line] == subjects.split()
    first = [line.removeprefix("FAIL  ") for line in _failures(lines)][:1]
    assert bool(first) == bool(failure)
    assert all(line.startswith(failure) for line in first)


SLURM = {"JOB_ID": "7", "JOB_NODELIST": "n[1-2]", "NTASKS": "4", "TASKS_PER_NODE": "2(x2)"}


@pytest.mark.parametrize(
    ("environment", "argv", "hosts", "shell"),
    [
        ({"HOLDFAST_HOSTS": "a:1"}, "--hosts a:2,b:2", ["a:2", "b:2"], "my-shell"),
        ({f"SLURM_{name}": value for name, value in SLURM.items()}, "", ["n1:2", "n2:2"], "srun "),
    ],
    ids=["named", "batch job"],
)
def test_hosts_are_examined_with_the_options_of_a_job(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    argv: str,
    hosts: list[str],
    shell: str,
) -> None:
    table = '[run]\nrsh = "my-shell"\n' if argv else ""
    Path("holdfast.toml").write_text(f'{table}[doctor]\nnetwork = "eth1"\n')
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    seen: list[JobOptions] = []

    def examine(options: JobOptions, _library: object) -> list[Diagnosis]:
        seen.append(options)
        return [Diagnosis("host b", "is not there", is_good=False)]

    monkeypatch.setattr(doctor_file, "examine_hosts", examine)

    code, lines = _doctor(capsys, *argv.split())

    assert code == ExitCode.USAGE
    assert "FAIL  host b        is not there" in lines
    (options,) = seen
    assert options.network == "eth1"
    assert options.rsh.startswith(shell)
    assert [str(host) for host in options.hosts] == hosts


def test_mpi_is_tried_with_the_settings_of_a_job_and_the_answer_names_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def passing(_library: object, _environment: object, trial: Trial, terms: object) -> object:
        tried.append(terms)
        return TrialOutcome(trial)

    monkeypatch.setattr(doctor_file, "run_trial", passing)
    found = (Interface("eth1", "10.1.2.3", 16),)
    monkeypatch.setattr(doctor_file, "interfaces", lambda: found)

    code, lines = _doctor(capsys, "--mpi", "--network", "eth1", "--mca", "btl", "self,tcp,uct")

    assert code == ExitCode.DONE, lines
    assert tried == [LaunchTerms("10.1.0.0/16", ("btl self,tcp,uct",))] * 2
    words = "both ranks were on this host, with tcp on 10.1.0.0/16, --mca btl self,tcp,uct; "
    assert words in lines[-1]
    assert "InfiniBand and Slingshot (btl uct or ofi) were at hand on no machine" in lines[-1]
