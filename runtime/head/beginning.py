"""What a user is told when a job begins: in one line what it is, and in others what to think of."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.recovery.placement import place_workers
from holdfast.runtime.head.console import Teller
from holdfast.runtime.head.job_setup import JobSetup
from holdfast.runtime.options.run_terms import elsewhere
from holdfast.runtime.run.events import Incarnation, PreloadFailed, Warned
from holdfast.runtime.run.lease import LASTS_S, RENEWED_EVERY_S
from holdfast.runtime.run.program import changes
from holdfast.runtime.run.progress import count
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.devices import Devices, find_devices
from holdfast.runtime.system.own_process import usable_cores


def tell_beginning(setup: JobSetup, teller: Teller, batch: str) -> None:
    """Say what begins and what to think of; ``batch`` says which batch job it is in, if any."""
    if setup.options.shrink and setup.library.warning:
        teller.say(f"warning: {setup.library.warning}")
    for text in (_first_line(setup), *_advice(setup)):
        teller.inform(text)
    for module in setup.missing_modules:
        reason = "there is no such module; correct --preload or install it"
        teller.say(f"{module} is not preloaded: {reason}")
        setup.journal.record(PreloadFailed(module, reason))
    for text in () if setup.checked_hosts is None else setup.checked_hosts.unlike:
        teller.tell(Warned(f"{text} (--strict refuses such hosts)"))
    if setup.lost_step is not None:
        teller.tell(Warned(_lost(setup.lost_step, setup)))
    setup.journal.record(setup.started)
    for text in setup.copies_told:
        teller.tell(Warned(text))
    if batch:
        teller.tell(Incarnation(batch))


def _first_line(setup: JobSetup) -> str:
    """Return what begins, where, with which workers and seed."""
    options, record = setup.options, setup.record
    verb, step = "resuming" if _is_resuming(setup) else "starting", setup.saved_step
    begin = " from the beginning" if step is None else f" from step {step}"
    return (
        f"{verb} {options.script.name}{begin if setup.is_resumed else ''}"
        f" on {count(options.workers, 'worker')}"
        + (f" and {count(options.spares, 'spare')}" if options.spares else "")
        + f" ({count(record.microbatches, 'microbatch', 'microbatches')}, seed {record.seed}, "
        f"{count(record.threads, 'thread')} each) in {options.run_dir}"
    )


def _advice(setup: JobSetup) -> Iterator[str]:
    """Yield a line on each thing that the user may not have meant so."""
    options, parts = setup.options, setup.record.microbatches
    yield from _of_the_directory(setup)
    yield from _of_hosts(setup)
    if _is_resuming(setup):
        yield from _unlike_the_begin(setup)
    if "horovod" in setup.source.imported:
        yield (
            f"{options.script.name} imports horovod, whose work the workers do by themselves: "
            "docs/migration/horovod.md of holdfast shows which lines go"
        )
    if parts < options.workers:
        who = "one worker computes" if parts == 1 else f"{parts} workers compute"
        yield (
            f"{count(parts, 'microbatch', 'microbatches')} for {options.workers} workers: only "
            f"{who}, and the others wait; give --microbatches {options.workers} for all to compute"
        )


def _unlike_the_begin(setup: JobSetup) -> Iterator[str]:
    """Yield a line on each thing that is another one than when the run began."""
    options, record, program = setup.options, setup.record, setup.program
    other = elsewhere(record, options)
    if other:
        yield (
            f"the run was begun with {other}, and goes on with {options.script}, which has the "
            "same text; --fresh begins a new run"
        )
    changed = changes(record.modules or {}, program.modules)
    if record.script_sha256 not in (None, program.script_sha256):
        changed.insert(0, options.script.name)
    if changed:
        yield (
            f"{' and '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since this "
            "run began. The run goes on with the new script, but with the weights and the learning "
            "rate of its checkpoint; --fresh begins a new run"
        )
    if record.argv not in (None, list(options.argv)):
        yield (
            f"the run was begun with {_in_words(record.argv)}, and {options.script.name} has "
            f"{_in_words(options.argv)} now: what is trained already stays as it is, and so does "
            "what a checkpoint holds, as the learning rate of Keras; to train anew with these, "
            "give --fresh or another --run-dir"
        )
    initial = options.initial
    if None not in (initial, record.modules) and str(initial) != record.initial:
        yield (
            f"--initial {initial} is not taken: the run was begun with the weights of "
            f"{record.initial or 'the script'}, and goes on from its checkpoint; --fresh or "
            f"another --run-dir begins with those of {initial}"
        )


def _in_words(argv: Sequence[str]) -> str:
    """Return the arguments of a script as a phrase."""
    return f"the arguments {shlex.join(argv)!r}" if argv else "no arguments"


def _of_hosts(setup: JobSetup) -> Iterator[str]:
    """Yield a line on the hosts of the job if there are several, and on the devices of each."""
    checked, workers = setup.checked_hosts, setup.options.workers + setup.options.spares
    before = setup.history.history.hosts
    if len(before) > 1 and not setup.options.hosts and _is_resuming(setup):
        yield (
            f"the job before had the hosts {', '.join(before)}, and this one has this host alone; "
            f"--hosts {','.join(before)} takes them again"
        )
    if checked is None:
        yield from _cores_of("", setup.options.workers, usable_cores(), setup.record.threads)
        yield from _devices_of("", workers, find_devices(os.environ))
        return
    placed = Counter(place_workers(workers, checked.hosts))
    named = ", ".join(f"{host.name}:{placed[host.name]}" for host in checked.hosts)
    yield f"{count(len(checked.hosts), 'host')} on the network {checked.network}: {named}"
    if checked.variables:
        words = " ".join(f"{name}={value}" for name, value in checked.variables.items())
        yield f"the processors of the hosts differ: all workers have {words}"
    for host, facts in zip(checked.hosts, checked.facts, strict=True):
        there, threads = placed[host.name], setup.record.threads
        yield from _cores_of(f" on {host.name}", there, facts.cores, threads)
    for host, facts in zip(checked.hosts, checked.facts, strict=True):
        yield from _devices_of(f" on {host.name}", placed[host.name], facts.devices)


def _cores_of(where: str, workers: int, cores: int, threads: int) -> Iterator[str]:
    if workers > cores:
        yield (
            f"{workers} workers{where} share {count(cores, 'core')}: they take turns, so a step "
            f"takes longer than with {count(cores, 'worker')}"
        )
    elif cores < workers * threads and workers > 1:  # the threads of a run that began with fewer
        yield (
            f"{workers} workers{where} of {threads} threads share {count(cores, 'core')}: "
            f"--threads {cores // workers} is faster, with other bytes"
        )


def _devices_of(where: str, workers: int, devices: Devices) -> Iterator[str]:
    number = len(devices.names)
    if number and workers > number:
        yield f"{workers} workers{where} share {count(number, 'device')}: {devices}"
    elif number and workers:
        yield f"each worker{where} has one of {count(number, 'device')}: {devices}"


def _of_the_directory(setup: JobSetup) -> Iterator[str]:
    """Yield a line on each thing that is unusual about the run directory."""
    options, aside = setup.options, setup.set_aside
    if aside is not None:
        kept = RunDirectory(options.run_dir).previous_runs
        many = f"; {kept} are there now, and `rm -r {options.run_dir}/previous-*` removes them"
        yield f"moved the previous run to {aside} (--fresh)" + (many if kept > 1 else "")
    if setup.lease.is_renewed:
        yield (
            f"the file system of {options.run_dir} has no locks (flock), so this job writes a sign "
            f"of life into its lease every {RENEWED_EVERY_S:.0f} s; should it be killed, the next "
            f"one waits {LASTS_S:.0f} s for another one, with --wait-lease"
        )


def _lost(step: int, setup: JobSetup) -> str:
    """Return what becomes of a run whose newest checkpoint, or all of them, are gone."""
    newest, place = setup.saved_step, RunDirectory(setup.options.run_dir).checkpoints_path
    left = "none is left" if newest is None else f"step {newest} is the newest"
    begins = "begins at step 0" if newest is None else f"goes on from step {newest}"
    text = f"the journal knows of a checkpoint of step {step}, but {left} in {place}: training "
    return f"{text}{begins}; if you have that checkpoint, stop the job and put it back"


def _is_resuming(setup: JobSetup) -> bool:
    """Return whether something was trained before; a job that was refused has trained nothing."""
    return setup.is_resumed and bool(setup.saved_step)
