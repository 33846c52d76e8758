"""Open MPI's own settings: how they are written, and which are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.mca_settings import pair_of, read_mca


def with_settings(*settings: str, **more: Any) -> JobOptions:
    return JobOptions(script=Path("/a/train.py"), run_dir=Path("/runs/a"), mca=settings, **more)


@pytest.mark.parametrize(
    "written",
    [
        (("btl", "self,uct"), ("btl_uct_transports", "rc")),
        ["btl self,uct", "btl_uct_transports  rc"],
        "btl self,uct; btl_uct_transports rc;",
    ],
    ids=["command line", "list of a file", "variable"],
)
def test_settings_are_read_from_wherever_they_stand(written: Any) -> None:
    settings = read_mca(written)

    assert [*map(pair_of, settings)] == [("btl", "self,uct"), ("btl_uct_transports", "rc")]
    assert with_settings(*settings).mca == settings


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("btl", "must be a key and its value, as in \"btl self,uct\", got 'btl'"),
        ("--btl self", "must be a key and its value"),
        ("btl tcp,uct", 'name the transports to use, self among them, as in "self,uct"'),
        ("btl ^sm", "name the transports to use"),
        ("coll ^han", "adapt may return success with wrong sums"),
        ("coll tuned,han", "han may return success with wrong sums"),
        ("mpi_ft_enable 0", "holdfast finds out who is dead"),
        ("mpi_ft_detector 1", "--heartbeat-timeout"),
        ("opal_signal 6,11", "holdfast sets this itself, and a job relies on it; leave it out"),
        ("state_base_recoverable 0", "holdfast sets this itself"),
        ("btl_tcp_if_include eth1", "name it with --network"),
        ("rmaps_base_mapping_policy node", "mpiexec places and binds guards, not workers"),
        ("hwloc_default_binding_policy core", "with taskset or the batch system"),
    ],
)
def test_setting_that_would_break_a_job_is_refused_with_the_remedy(
    setting: str, words: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        with_settings(setting)

    assert words in str(refusal.value)
    assert str(refusal.value).startswith("--mca")


def test_setting_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="pml is given 2 times"):
        with_settings("pml ob1", "pml ob1")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("btl self,sm,tcp", "leave sm out, or run on one host"),
        ("coll ^han,adapt", 'as in "^han,adapt,sm"'),
        ("coll basic,sm", "sm must be left out between hosts"),
    ],
)
def test_shared_memory_of_mpi_is_refused_between_hosts(setting: str, words: str) -> None:
    hosts = (HostSlots("a", 1), HostSlots("b", 1))
    assert with_settings(setting).mca == (setting,)

    with pytest.raises(UsageError) as refusal:
        with_settings(setting, hosts=hosts)

    assert words in str(refusal.value)


@pytest.mark.parametrize(
    "setting", ["btl self,uct", "btl self,tcp,ofi", "coll ^han,adapt,sm", "coll basic", "pml ucx"]
)
def test_other_settings_are_left_to_the_trial(setting: str) -> None:
    hosts = (HostSlots("a", 1), HostSlots("b", 1))

    assert with_settings(setting, hosts=hosts).mca == (setting,)
