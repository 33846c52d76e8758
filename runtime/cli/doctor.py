"""``holdfast doctor``: whether a job could run here, and what to do if not."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from holdfast.runtime.batch.schedulers import find_allocation, options_of
from holdfast.runtime.cli.help import Documented
from holdfast.runtime.cli.option_flags import PATH, flags_of, given_flags
from holdfast.runtime.errors import ExitCode, JobError, UsageError
from holdfast.runtime.head.job_setup import FOR_ALL, FOR_KERAS
from holdfast.runtime.head.preconditions import Wishes, faults, surroundings
from holdfast.runtime.host.launchers import ON_ONE_HOST, LaunchTerms
from holdfast.runtime.hosts.network import places
from holdfast.runtime.mpi.mpi_library import INSTALL_HINT, MpiLibrary, find_mpiexec, identify
from holdfast.runtime.mpi.trial import FIRST_DEATH, PLAIN_START
from holdfast.runtime.mpi.trial_run import run_trial
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.mca_settings import pair_of
from holdfast.runtime.options.option import DOCTOR, RUN
from holdfast.runtime.options.sources import Sources, build_options
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Loopback
from holdfast.runtime.system.devices import find_devices
from holdfast.runtime.system.network import interfaces, own_name
from holdfast.runtime.system.own_process import answer_of, program_command, usable_cores
from holdfast.runtime.tools.hosts_doctor import Diagnosis, examine_hosts

_UNTRIED = (
    "InfiniBand and Slingshot (btl uct or ofi) were at hand on no machine of holdfast's tests"
)
_IMPORT_TIMEOUT_S = 120.0
"""TensorFlow takes three seconds from a warm disk, and much longer from a cold network one."""


@click.command(cls=Documented, context_settings={"auto_envvar_prefix": "HOLDFAST"})
@click.option("--run-dir", type=PATH, default=Path("."), show_default=True)
@click.option("--mpiexec", type=PATH, help="The mpiexec to examine.")
@click.option("--mpi", "only_mpi", is_flag=True, help="Examine MPI alone.")
@flags_of(DOCTOR)
@click.pass_context
def doctor(
    context: click.Context, /, run_dir: Path, mpiexec: Path | None, *, only_mpi: bool, **_: Any
) -> None:
    """Examine MPI, TensorFlow, the run directory, and other hosts; exit 2 if a job could not run.

    With --hosts or --hostfile, or in a batch job with several hosts, it asks each host, as a job
    does before it begins: what differs, the network that the hosts would take, and the speed of
    their links.
    """
    tables = context.find_object(dict) or {}
    sources = Sources(
        given_flags(context) | {"run_dir": run_dir.absolute()},
        *(os.environ, tables.get(RUN, {}) | tables.get(DOCTOR, {}), Path.cwd(), DOCTOR),
        allocation=options_of(find_allocation(os.environ)),
    )
    options = build_options(Path("train.py"), (), sources).options
    is_healthy = True
    for finding in _examine_mpi(options, mpiexec) if only_mpi else _examine(options, mpiexec):
        mark = "ok  " if finding.is_good else "FAIL"
        click.echo(f"{mark}  {finding.subject:<13} {finding.sentence}")
        is_healthy = is_healthy and finding.is_good
    sys.exit(ExitCode.DONE if is_healthy else ExitCode.USAGE)


def _examine(options: JobOptions, mpiexec: Path | None) -> Iterator[Diagnosis]:
    """Yield findings as they come; checks that depend on a failed one are left out."""
    yield Diagnosis("Python", f"{sys.version.split()[0]} ({sys.executable})")
    yield Diagnosis("cores", f"{usable_cores()} usable")
    devices = find_devices(os.environ)
    if devices.names:
        yield Diagnosis("devices", f"{len(devices.names)} visible: {devices}")
    yield from _examine_mpi(options, mpiexec)
    tensorflow = _find_tensorflow()
    yield tensorflow
    yield _find_modules([*FOR_ALL, *(FOR_KERAS if tensorflow.is_good else ())])
    directory = RunDirectory(options.run_dir)
    try:
        directory.prepare()
    except JobError as error:
        yield Diagnosis("run directory", str(error), is_good=False)
    else:
        yield Diagnosis("run directory", f"{directory.path} is writable")
        if options.hosts:
            yield from _examine_hosts(options, mpiexec)


def _examine_hosts(options: JobOptions, mpiexec: Path | None) -> Iterator[Diagnosis]:
    """Yield what is found of other hosts, if there is an MPI for them."""
    with contextlib.suppress(JobError):  # it was told
        yield from examine_hosts(options, identify(find_mpiexec(mpiexec)))


def _examine_mpi(options: JobOptions, mpiexec: Path | None) -> Iterator[Diagnosis]:
    """Yield what concerns MPI: what it needs of the host, the library, and how two ranks fare."""
    found = surroundings(os.environ)
    for sentence in faults(found, Wishes()):
        yield Diagnosis("host", sentence, is_good=False)
    try:
        library = identify(find_mpiexec(mpiexec))
    except JobError as error:
        yield Diagnosis("MPI", str(error), is_good=False)
        return
    yield Diagnosis("MPI", str(library))
    if found.loopback is Loopback.WORKS:
        try:
            terms = _terms_of(options)
        except UsageError as error:
            yield Diagnosis("network", str(error), is_good=False)
        else:
            yield from _try_out(library, terms)
    if library.warning:
        yield Diagnosis("MPI version", library.warning, is_good=False)


def _terms_of(options: JobOptions) -> LaunchTerms:
    """Return how a job would use MPI: with the network that is named, or this host's first one."""
    network = None
    if options.hosts or options.network is not None:
        found = places(options.network, interfaces(), own_name())
        network = found[0].network if found else None
    return LaunchTerms(network, tuple(pair_of(setting) for setting in options.mca))


def _try_out(library: MpiLibrary, terms: LaunchTerms) -> Iterator[Diagnosis]:
    """Start two ranks; where survivors can go on, kill one of two."""
    started = run_trial(library, os.environ, PLAIN_START, terms).outcome
    yield Diagnosis("MPI start", started.failure or "two ranks started", is_good=started.has_passed)
    if not library.launcher.can_shrink:
        sentence = f"{library.name} has none; run jobs with --no-shrink"
        yield Diagnosis("ULFM", sentence, is_good=False)
        return
    survived = run_trial(library, os.environ, FIRST_DEATH, terms).outcome
    sentence = "one of two ranks was killed and the other went on"
    if not survived.has_passed:
        fault = survived.wrong or survived.failure
        sentence = f"survivors cannot go on: {fault}; {INSTALL_HINT}, or use --no-shrink"
    yield Diagnosis("ULFM", sentence, is_good=survived.has_passed)
    if terms != ON_ONE_HOST:
        yield Diagnosis("MPI settings", f"both ranks were on this host, with {terms}; {_UNTRIED}")


def _find_tensorflow() -> Diagnosis:
    """Import TensorFlow in another process: it may be slow, or crash its process."""
    program = "import tensorflow; print(tensorflow.__version__)"
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        answer = answer_of(program_command(program), _IMPORT_TIMEOUT_S, environment)
    except subprocess.TimeoutExpired:
        return _no_tensorflow(f"importing it takes more than {_IMPORT_TIMEOUT_S:g} s")
    if answer.returncode == 0:
        return Diagnosis("TensorFlow", answer.stdout.strip())
    complaint = answer.stderr.strip().rpartition("\n")[2]
    return _no_tensorflow(complaint or f"its import ended with {answer.returncode}")


def _find_modules(modules: Sequence[str]) -> Diagnosis:
    """Import what a worker imports, without a world of MPI, in another process."""
    program = f"""
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
import holdfast.runtime.exchange.mpi_communicator, {", ".join(modules)}
"""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        answer = answer_of(program_command(program), _IMPORT_TIMEOUT_S, environment)
    except subprocess.TimeoutExpired:
        sentence = f"importing what they need takes more than {_IMPORT_TIMEOUT_S:g} s"
        return Diagnosis("workers", sentence, is_good=False)
    if answer.returncode == 0:
        return Diagnosis("workers", "import all that they need")
    complaint = answer.stderr.strip().rpartition("\n")[2]
    sentence = f"cannot import what they need: {complaint}; install holdfast-mpi again"
    return Diagnosis("workers", sentence, is_good=False)


def _no_tensorflow(reason: str) -> Diagnosis:
    hint = "pip install tensorflow-cpu (scripts with a replica of their own do without)"
    return Diagnosis("TensorFlow", f"cannot be imported: {reason}; {hint}", is_good=False)
