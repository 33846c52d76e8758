"""The command line and the environment of a launch."""

from __future__ import annotations

import dataclasses
import os
import pwd
import sys
from pathlib import Path

import pytest

from holdfast.runtime.host.launchers import (
    INTEL_MPI,
    MPICH,
    Launcher,
    LaunchLine,
    LaunchTerms,
    job_environment,
)

LINE = LaunchLine(
    mpiexec=Path("/opt/mpi/bin/mpiexec"),
    ranks=4,
    directory=Path("/tmp/holdfast-1"),
    guard=("python", "-I", "guard.py"),
)


NETWORK = "10.77.0.0/24"


@pytest.mark.parametrize(
    ("user", "root", "network", "btl", "coll", "between"),
    [
        (0, "--allow-run-as-root ", None, "self,sm", "^han,adapt", ""),
        (
            *(1000, "", NETWORK, "self,tcp", "^han,adapt,sm"),
            "--mca btl_tcp_if_include 10.77.0.0/24 --mca btl_tcp_disable_family 6 "
            "--mca btl_tcp_flags send --mca btl_tcp_links 1 --mca btl_tcp_eager_limit 131072 "
            "--prtemca pmix_remote_connections 1 --pmixmca gds hash "
            "--pmixmca ptl_tcp_if_include 10.77.0.0/24 ",
        ),
    ],
    ids=["one host", "between hosts"],
)
def test_line_with_ulfm(
    monkeypatch: pytest.MonkeyPatch,
    user: int,
    root: str,
    network: str | None,
    btl: str,
    coll: str,
    between: str,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    line = dataclasses.replace(LINE, terms=LaunchTerms(network))

    assert " ".join(line.command()) == (
        f"/opt/mpi/bin/mpiexec {root}--with-ft ulfm "
        "--prtemca state_base_recoverable 1 --prtemca state_base_notify_errors 1 "
        "--oversubscribe --bind-to none --map-by slot:OVERSUBSCRIBE "
        f"--prtemca prte_default_hostfile none --mca pml ob1 --mca btl {btl} --mca coll {coll} "
        f"--mca mpi_add_procs_cutoff 1024 --mca shmem mmap --mca opal_signal  {between}"
        "--mca btl_sm_backing_directory /tmp/holdfast-1 -n 4 python -I guard.py"
    )


def test_users_settings_take_the_place_of_the_launchers_own() -> None:
    mca = ("btl self,uct", "gds hash", "btl_uct_transports rc")
    line = dataclasses.replace(LINE, terms=LaunchTerms(NETWORK, mca))

    words = " ".join(line.command())

    assert " --mca btl self,uct --mca coll" in words
    assert " --pmixmca gds hash " in words
    assert " --mca btl_uct_transports rc --mca btl_sm_backing_directory " in words


@pytest.mark.parametrize("network", [None, NETWORK])
@pytest.mark.parametrize("ulfm", [True, False])
def test_no_parameter_is_given_twice(ulfm: bool, network: str | None) -> None:  # noqa: FBT001
    """mpiexec refuses to start when one is."""
    mca = ("coll ^han", "gds hash")
    command = dataclasses.replace(LINE, ulfm=ulfm, terms=LaunchTerms(network, mca)).command()

    names = [command[i + 1] for i, word in enumerate(command) if word.endswith("mca")]

    assert len(names) == len(set(names))


def test_environment_is_private_to_the_launch() -> None:
    base = {"PATH": "/bin", "HOME": "/h", "TMPDIR": "/var/tmp", "PMIX_RANK": "3"}

    environment = LINE.environment(base, HOLDFAST_GENERATION="2")

    private = {"TMPDIR": "/tmp/holdfast-1", "HOLDFAST_GENERATION": "2", "UCX_HANDLE_ERRORS": "none"}
    assert environment == {"PATH": "/bin", "HOME": "/h", **private}
    assert base["PMIX_RANK"] == "3"


@pytest.mark.parametrize(
    ("launcher", "options"),
    [(MPICH, "-launcher fork -bind-to none"), (INTEL_MPI, "-launcher fork")],
)
def test_line_of_hydra(launcher: Launcher, options: str) -> None:
    line = dataclasses.replace(LINE, ulfm=False, launcher=launcher)

    assert " ".join(line.command()) == f"/opt/mpi/bin/mpiexec {options} -n 4 python -I guard.py"
    with pytest.raises(ValueError, match=f"outlives a death under {launcher.library}"):
        dataclasses.replace(line, ulfm=True)
    with pytest.raises(ValueError, match=f"{launcher.library} starts no worker on another host"):
        dataclasses.replace(line, terms=LaunchTerms(NETWORK))


def test_ranks_of_hydra_listen_on_no_network_unless_the_site_wants_it() -> None:
    line = dataclasses.replace(LINE, ulfm=False, launcher=MPICH)

    assert line.environment({})["UCX_TLS"] == "posix,cma,self"
    assert line.environment({"UCX_TLS": "all"})["UCX_TLS"] == "all"


@pytest.mark.parametrize(
    "name",
    [
        *("PMIX_RANK", "OMPI_UNIVERSE_SIZE", "PRTE_LAUNCHED", "PMI_SIZE", "PMI_FD", "PMI2_RANK"),
        *("HYDI_CONTROL_FD", "HYDRA_BSTRAP_X", "MPI_LOCALNRANKS"),
        # mpiexec would start daemons by srun, on all hosts of an allocation
        *("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_JOBID", "JOB_ID"),
        *("PRTE_MCA_rmaps_default_mapping_policy", "PRTE_MCA_ras"),
        "OMPI_MCA_rmaps_base_mapping_policy",
    ],
)
def test_variable_of_an_enclosing_job_and_where_ranks_go_is_left_out(name: str) -> None:
    assert name not in LINE.environment({name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        *("PMIX_MCA_gds", "OMPI_MCA_btl", "PRTE_MCA_state", "I_MPI_FABRICS", "HYDRA_IFACE"),
        *("OPAL_PREFIX", "MY_SLURM_JOB_ID", "JOB_ID_OF_MINE", "MPI_HOME", "XPMI_RANK"),
    ],
)
def test_choice_of_the_user_stays(name: str) -> None:
    assert LINE.environment({name: "1"})[name] == "1"


@pytest.mark.parametrize("home", ["", "/somewhere"])
def test_launcher_has_a_home_also_for_a_user_without_a_name(
    monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    def no_entry(_: int) -> None:
        raise KeyError

    base = {"HOME": home} if home else {}
    users = pwd.getpwuid(os.getuid()).pw_dir
    assert LINE.environment(base)["HOME"] == (home or users)
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    assert LINE.environment(base)["HOME"] == (home or str(LINE.directory))


def test_environment_of_a_job_has_this_python_and_no_other_mpi_job_nor_plugins_of_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped = {"PMIX_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "HDF5_PLUGIN_PATH": "/of-anybody"}
    settings = {
        "OMPI_MCA_btl_tcp_if_include": "ib0",
        "PMIX_MCA_gds": "hash",
        "GLIBC_TUNABLES": "glibc.malloc.check=3",
    }
    for name, value in {**dropped, **settings, "PATH": "/usr/bin:/bin"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TF_ONEDNN_USE_SYSTEM_ALLOCATOR", raising=False)

    environment = job_environment(threads=2)

    assert not dropped.keys() & environment.keys()
    assert settings.items() <= environment.items()
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["TF_ONEDNN_USE_SYSTEM_ALLOCATOR"] == "1"
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin"
