"""The variables with which the processes of a job begin."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.runtime.host.launchers import job_environment


def test_environment_of_a_job_is_that_outside_of_any_mpi_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enclosing = {"PMIX_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "PRTE_LAUNCHED": "1"}
    settings = {"OMPI_MCA_btl_tcp_if_include": "ib0", "PMIX_MCA_gds": "hash"}
    for name, value in (enclosing | settings).items():
        monkeypatch.setenv(name, value)

    environment = job_environment(threads=2)

    assert not enclosing.keys() & environment.keys()
    assert settings.items() <= environment.items()
    assert environment["OMP_NUM_THREADS"] == "2"


def test_thread_pools_of_all_libraries_have_the_threads_of_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    monkeypatch.setenv("MKL_NUM_THREADS", "64")

    environment = job_environment(threads=3)

    assert {environment[name] for name in pools} == {"3"}


def test_environment_makes_runs_alike_unless_the_user_wants_it_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PYTHONHASHSEED", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    plain = job_environment(threads=1)
    monkeypatch.setenv("PYTHONHASHSEED", "7")

    assert (plain["PYTHONHASHSEED"], plain["TF_CPP_MIN_LOG_LEVEL"]) == ("0", "2")
    assert job_environment(threads=1)["PYTHONHASHSEED"] == "7"


def test_arrow_begins_no_thread_unless_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JE_ARROW_MALLOC_CONF", raising=False)
    plain = job_environment(threads=1)
    monkeypatch.setenv("JE_ARROW_MALLOC_CONF", "narenas:2")

    assert plain["JE_ARROW_MALLOC_CONF"] == "background_thread:false"
    assert job_environment(threads=1)["JE_ARROW_MALLOC_CONF"] == "narenas:2"


def test_environment_brings_this_python_and_no_plugins_of_strangers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HDF5_PLUGIN_PATH", "/tmp/of-anybody")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")

    environment = job_environment(threads=1)

    assert "HDF5_PLUGIN_PATH" not in environment
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/usr/bin:/bin"
