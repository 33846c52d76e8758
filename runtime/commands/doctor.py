"""``holdfast doctor``: whether a job could run here, and what to do if not."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from holdfast.recovery.placement import HostSlots
from holdfast.runtime.batch.schedulers import find_allocation, options_of
from holdfast.runtime.commands.command import PATH, Documented, flags_of, given_flags
from holdfast.runtime.errors import ExitCode, JobError, UsageError
from holdfast.runtime.head.job_setup import FOR_ALL, FOR_KERAS
from holdfast.runtime.head.preconditions import host_faults, job_faults
from holdfast.runtime.host.launchers import (
    INSTALL_HINT,
    ON_ONE_HOST,
    LaunchTerms,
    MpiLibrary,
    find_mpiexec,
    identify,
)
from holdfast.runtime.host.mpi_trial import FIRST_DEATH, PLAIN_START, run_trial
from holdfast.runtime.hosts.checked_hosts import (
    Asked,
    ask_hosts,
    common_numerics,
    differences,
    may_differ,
    settle_hosts,
    unlike_devices,
)
from holdfast.runtime.hosts.network import Place, choose, places
from holdfast.runtime.hosts.wire import Question
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.option import DOCTOR, RUN
from holdfast.runtime.options.sources import Sources, build_options, seen_from
from holdfast.runtime.run.numerics import instruction_set
from holdfast.runtime.run.progress import count, memory
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.devices import find_devices
from holdfast.runtime.system.network import Loopback, interfaces, loopback_state, own_name
from holdfast.runtime.system.own_process import (
    answer_of,
    logical_directory,
    program_command,
    usable_cores,
)

_UNTRIED = (
    "InfiniBand and Slingshot (btl uct or ofi) were at hand on no machine of holdfast's tests"
)
_TOLD_CLOCK_S = 2.0
_IMPORT_TIMEOUT_S = 120.0
"""TensorFlow takes three seconds from a warm disk, and much longer from a cold network one."""


@click.command(
    cls=Documented,
    examples=("doctor", "doctor --hosts a:4,b:4"),
    context_settings={"auto_envvar_prefix": "HOLDFAST"},
)
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
    does before it begins: what differs, and the network that the hosts would take.
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
        sentence = str(error).removeprefix("run directory ")
        yield Diagnosis("run directory", sentence, is_good=False)
    else:
        yield Diagnosis("run directory", f"{directory.path} is writable")
        if options.hosts:
            with contextlib.suppress(JobError):  # there is no MPI for them, which was told
                yield from examine_hosts(options, identify(find_mpiexec(mpiexec)))


def _examine_mpi(options: JobOptions, mpiexec: Path | None) -> Iterator[Diagnosis]:
    """Yield what concerns MPI: what it needs of the host, the library, and how two ranks fare."""
    for sentence in (*host_faults(os.environ), *job_faults(os.environ)):
        yield Diagnosis("host", sentence, is_good=False)
    try:
        library = identify(find_mpiexec(mpiexec))
    except JobError as error:
        yield Diagnosis("MPI", str(error), is_good=False)
        return
    yield Diagnosis("MPI", str(library))
    if loopback_state() is Loopback.WORKS:
        network = None  # else this host's first one, or that which is named
        try:
            if options.hosts or options.network is not None:
                found = places(options.network, interfaces(), own_name())
                network = str(found[0].network) if found else None
        except UsageError as error:
            yield Diagnosis("network", str(error), is_good=False)
        else:
            yield from _try_out(library, LaunchTerms(network, tuple(options.mca)))
    if library.warning:
        yield Diagnosis("MPI version", library.warning, is_good=False)


def _try_out(library: MpiLibrary, terms: LaunchTerms) -> Iterator[Diagnosis]:
    """Start two ranks; where survivors can go on, kill one of two."""
    started = run_trial(library, os.environ, PLAIN_START, terms)
    yield Diagnosis("MPI start", started.failure or "two ranks started", is_good=started.has_passed)
    if not library.launcher.can_shrink:
        sentence = f"{library.name} has none; run jobs with --no-shrink"
        yield Diagnosis("ULFM", sentence, is_good=False)
        return
    survived = run_trial(library, os.environ, FIRST_DEATH, terms)
    sentence = "one of two ranks was killed and the other went on"
    if not survived.has_passed:
        sentence = f"survivors cannot go on: {survived.fault}; {INSTALL_HINT}, or use --no-shrink"
    yield Diagnosis("ULFM", sentence, is_good=survived.has_passed)
    if terms != ON_ONE_HOST:
        yield Diagnosis("MPI settings", f"both ranks were on this host, with {terms}; {_UNTRIED}")


def _find_tensorflow() -> Diagnosis:
    version, fault = _import_alone("import tensorflow; print(tensorflow.__version__)")
    if not fault:
        return Diagnosis("TensorFlow", version)
    hint = "pip install tensorflow-cpu (scripts with a replica of their own do without)"
    return Diagnosis("TensorFlow", f"cannot be imported: {fault}; {hint}", is_good=False)


def _find_modules(modules: Sequence[str]) -> Diagnosis:
    """Import what a worker imports, without a world of MPI."""
    _, fault = _import_alone(f"""
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
import holdfast.runtime.exchange.mpi_communicator, {", ".join(modules)}
""")
    if not fault:
        return Diagnosis("workers", "import all that they need")
    sentence = f"cannot import what they need: {fault}; install holdfast-mpi again"
    return Diagnosis("workers", sentence, is_good=False)


def _import_alone(program: str) -> tuple[str, str]:
    """Return what a program of imports prints, and its fault, if it has one.

    It runs in another process: it may be slow, or crash its process.
    """
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        answer = answer_of(program_command(program), _IMPORT_TIMEOUT_S, environment)
    except subprocess.TimeoutExpired:
        return "", f"importing it takes more than {_IMPORT_TIMEOUT_S:g} s"
    if answer.returncode == 0:
        return answer.stdout.strip(), ""
    complaint = answer.stderr.strip().rpartition("\n")[2]
    return "", complaint or f"its import ended with {answer.returncode}"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One finding: a sentence, and whether a job could run with it."""

    subject: str
    sentence: str
    is_good: bool = True


def examine_hosts(options: JobOptions, library: MpiLibrary) -> Iterator[Diagnosis]:
    """Yield what is found of the hosts that the options name; nothing if this is the only one."""
    hosts = settle_hosts(options)
    if not hosts:
        return
    names = [host.name for host in hosts]
    try:
        asked, question, tried = _asked(options, names, library)
    except (UsageError, OSError) as error:
        yield Diagnosis("hosts", str(error), is_good=False)
        return
    found = [one.facts for one in asked if one.facts is not None]
    yield from (_host(host, one) for host, one in zip(hosts, asked, strict=True))
    for sentence in (*differences(asked, question), *unlike_devices(hosts, asked)):
        yield Diagnosis("hosts", sentence, is_good=False)
    if len(found) == len(hosts):
        for sentence in may_differ(hosts, found):
            yield Diagnosis("hosts", f"{sentence} (--strict refuses them)")
    variables = common_numerics(os.environ, found)
    if variables:
        words = " ".join(f"{name}={value}" for name, value in variables.items())
        yield Diagnosis("processors", f"they differ: all workers would have {words}")
    if len(found) == len(names):
        try:
            network, addresses = choose(options.network, names, found, tried)
        except UsageError as error:
            yield Diagnosis("network", str(error), is_good=False)
        else:
            shown = ", ".join(f"{n} {a}" for n, a in zip(names, addresses, strict=True))
            yield Diagnosis("network", f"{network}: {shown}")


def _asked(
    options: JobOptions, names: Sequence[str], library: MpiLibrary
) -> tuple[list[Asked], Question, tuple[Place, ...]]:
    """Ask all hosts, with a file in the run directory that proves that they share it."""
    token = secrets.token_hex(16)
    with tempfile.NamedTemporaryFile(dir=options.run_dir, prefix=".holdfast-doctor-") as proof:
        proof.write(token.encode())
        proof.flush()
        os.fsync(proof.fileno())
        for directory in dict.fromkeys((Path.cwd(), logical_directory())):  # as a job does
            place = seen_from(replace(options, run_dir=Path(proof.name)), directory).run_dir
            question = Question(directory, None, place, token, library.mpiexec)
            asked, tried = ask_hosts(options, names, question, lambda _: None)  # no job waits
            if all(one.facts is None or one.facts.has_cwd for one in asked):
                break
        return asked, question, tried


def _host(host: HostSlots, one: Asked) -> Diagnosis:
    """Return a host in a line."""
    subject = f"host {host.name}"
    facts = one.facts
    if facts is None:
        return Diagnosis(subject, one.fault, is_good=False)
    parts = [
        f"takes {count(host.slots, 'worker')}",
        f"{count(facts.cores, 'core')} ({facts.processor or 'unknown'}, "
        f"{instruction_set(os.environ, facts.flags)})",
        f"{memory(facts.memory)} of memory",
        f"{memory(facts.shm_free)} free in /dev/shm",
    ]
    if facts.devices.names:
        parts.append(f"{count(len(facts.devices.names), 'device')} ({facts.devices})")
    if abs(one.clock_ahead_s) > _TOLD_CLOCK_S:
        word = "ahead" if one.clock_ahead_s > 0 else "behind"
        parts.append(f"its clock is {abs(one.clock_ahead_s):.0f} s {word}: set both by NTP")
    return Diagnosis(subject, ", ".join(parts))
