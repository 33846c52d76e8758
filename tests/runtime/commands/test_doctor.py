from __future__ import annotations

import ipaddress
import subprocess
from pathlib import Path

import pytest
from commands import holdfast_code

from holdfast.runtime.commands import doctor as doctor_file
from holdfast.runtime.commands.doctor import Diagnosis
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head import preconditions
from holdfast.runtime.host.launchers import LaunchTerms
from holdfast.runtime.host.mpi_trial import Outcome, Trial
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.system.network import Interface, Loopback


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which all is well, and its mpiexec."""
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.9'\n")
    mpiexec.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_MPIEXEC", str(mpiexec))
    monkeypatch.setattr(doctor_file, "run_trial", _passing)
    _answer_import(monkeypatch, 0, "2.21.0\n", "")
    return mpiexec


def _passing(_library: object, _environment: object, trial: Trial, _terms: object) -> Outcome:
    return Outcome(trial)


def _answer_import(monkeypatch: pytest.MonkeyPatch, code: int, out: str, err: str) -> None:
    def answer(command: list[str], *_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, out, err)

    monkeypatch.setattr(doctor_file, "answer_of", answer)


def _doctor(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str]]:
    return holdfast_code("doctor", *argv), capsys.readouterr().out.splitlines()


def _failures(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("FAIL")]


def test_healthy_machine_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = _doctor(capsys)

    assert code == ExitCode.DONE
    assert _failures(lines) == []
    assert any("Open MPI 5.0.9" in line for line in lines)
    assert any("2.21.0" in line for line in lines)


def test_loopback_interface_that_is_down_is_told_and_no_mpi_is_blamed_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (doctor_file, preconditions):
        monkeypatch.setattr(module, "loopback_state", lambda: Loopback.IS_DOWN)

    code, lines = _doctor(capsys)

    assert code == ExitCode.USAGE
    words = "the loopback interface lo is down: `ip link set lo up`, then run again"
    assert _failures(lines) == [f"FAIL  host          {words}"]
    assert not any("two ranks" in line for line in lines)


def test_missing_mpi_is_found_and_the_rest_still_examined(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, lines = _doctor(capsys, "--mpiexec", "/nowhere/mpiexec")

    assert code == ExitCode.USAGE
    assert len(_failures(lines)) == 1
    assert "TensorFlow" in " ".join(lines)


def test_mpi_without_ulfm_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(_library: object, _environment: object, trial: Trial, _terms: object) -> Outcome:
        return Outcome(trial, "no Revoke" if trial.deaths else "")

    monkeypatch.setattr(doctor_file, "run_trial", dying)

    code, lines = _doctor(capsys)

    assert code == ExitCode.USAGE
    assert "no Revoke" in _failures(lines)[0]


def test_version_that_crashes_survivors_is_found(
    capsys: pytest.CaptureFixture[str], machine: Path
) -> None:
    machine.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.11'\n")

    code, lines = _doctor(capsys)

    assert code == ExitCode.USAGE
    assert "going on in place; use 5.0.9" in _failures(lines)[0]


def test_launcher_without_ulfm_is_told_with_the_way_out(
    capsys: pytest.CaptureFixture[str], machine: Path
) -> None:
    machine.write_text("#!/bin/sh\nprintf 'HYDRA build details:\\n  Version: 5.0.2\\n'\n")

    code, lines = _doctor(capsys)

    assert code == ExitCode.USAGE
    assert "MPICH has none; run jobs with --no-shrink" in _failures(lines)[0]
    assert any("two ranks started" in line for line in lines)


def test_mpi_alone_is_examined_where_only_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer_import(monkeypatch, 1, "", "no TensorFlow")

    code, lines = _doctor(capsys, "--mpi", "--run-dir", "/proc/self/run")

    assert code == ExitCode.DONE
    assert [line.split()[1] for line in lines] == ["MPI", "MPI", "ULFM"]


def test_module_of_holdfast_that_workers_lack_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(command: list[str], *_: object) -> subprocess.CompletedProcess[str]:
        lacks = "holdfast.runtime.keras.script_setup" in " ".join(command)
        said = "Traceback\nModuleNotFoundError: No module named 'h'\n" if lacks else ""
        return subprocess.CompletedProcess(command, int(lacks), "2.21.0\n", said)

    monkeypatch.setattr(doctor_file, "answer_of", answer)

    code, lines = _doctor(capsys)

    assert code == ExitCode.USAGE
    assert _failures(lines) == [
        "FAIL  workers       cannot import what they need: ModuleNotFoundError: No module named "
        "'h'; install holdfast-mpi again"
    ]


def test_tensorflow_that_cannot_be_imported_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer_import(monkeypatch, 1, "", "Traceback\nImportError: libtensorflow.so: bad\n")

    code, lines = _doctor(capsys)

    assert code == ExitCode.USAGE
    assert "ImportError: libtensorflow.so: bad" in _failures(lines)[0]
    assert "pip install tensorflow-cpu" in _failures(lines)[0]


def test_run_directory_that_cannot_be_written_is_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, lines = _doctor(capsys, "--run-dir", "/proc/self/run")

    assert code == ExitCode.USAGE
    assert "/proc/self/run cannot be used" in _failures(lines)[0]


def test_hosts_are_examined_with_the_options_of_a_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "holdfast.toml").write_text('[run]\nrsh = "my-shell"\n[doctor]\nnetwork = "eth1"\n')
    monkeypatch.setenv("HOLDFAST_HOSTS", "a:1")
    seen: list[JobOptions] = []

    def examine(options: JobOptions, _library: object) -> list[Diagnosis]:
        seen.append(options)
        return [Diagnosis("host b", "is not there", is_good=False)]

    monkeypatch.setattr(doctor_file, "examine_hosts", examine)

    code, lines = _doctor(capsys, "--hosts", "a:2,b:2")

    assert code == ExitCode.USAGE
    assert "FAIL  host b        is not there" in lines
    (options,) = seen
    assert (options.rsh, options.network) == ("my-shell", "eth1")
    assert [str(host) for host in options.hosts] == ["a:2", "b:2"]


def test_hosts_of_a_batch_job_are_examined(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = {"JOB_ID": "7", "JOB_NODELIST": "n[1-2]", "NTASKS": "4", "TASKS_PER_NODE": "2(x2)"}
    for name, value in slurm.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    seen: list[JobOptions] = []

    def examine(options: JobOptions, _library: object) -> list[Diagnosis]:
        seen.append(options)
        return []

    monkeypatch.setattr(doctor_file, "examine_hosts", examine)

    _doctor(capsys)

    (options,) = seen
    assert [str(host) for host in options.hosts] == ["n1:2", "n2:2"]
    assert options.rsh.startswith("srun ")


def test_mpi_is_tried_with_the_settings_of_a_job_and_the_answer_names_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def passing(_library: object, _environment: object, trial: Trial, terms: object) -> Outcome:
        tried.append(terms)
        return Outcome(trial)

    monkeypatch.setattr(doctor_file, "run_trial", passing)
    found = (Interface("eth1", "10.1.2.3", 16),)
    monkeypatch.setattr(doctor_file, "interfaces", lambda: found)

    code, lines = _doctor(capsys, "--mpi", "--network", "eth1", "--mca", "btl", "self,tcp,uct")

    assert code == ExitCode.DONE, lines
    network = ipaddress.IPv4Network("10.1.0.0/16")
    assert tried == [LaunchTerms(network, (("btl", "self,tcp,uct"),))] * 2
    words = "both ranks were on this host, with tcp on 10.1.0.0/16, --mca btl self,tcp,uct; "
    assert words in lines[-1]
    assert "InfiniBand and Slingshot (btl uct or ofi) were at hand on no machine" in lines[-1]


def test_network_that_this_host_has_not_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_file, "interfaces", tuple)

    code, lines = _doctor(capsys, "--mpi", "--network", "10.9.0.0/16")

    assert code == ExitCode.USAGE
    assert "--network 10.9.0.0/16" in _failures(lines)[0]
