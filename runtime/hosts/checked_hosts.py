"""The hosts of a job before its record is made: asked all at once, compared, and refused in words.

A job over several hosts has the same bytes as on one, so what the bits depend on must be the same
on all of them.  Each host's agent is started to be asked, and ends then.  What differs is refused
with the host, both values and what mends it, while nothing has begun.

A host that comes back was away: what it runs may have been mended, updated or copied meanwhile.  So
its agent is asked the same before it gets the job, and its answer is compared with what all hosts
said when the job began.

What may differ is settled so that it suits all: the threads of a worker, and what oneDNN and
OpenBLAS make of the processor.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path

from holdfast.recovery.placement import HostSlots, place_workers
from holdfast.runtime.errors import UsageError
from holdfast.runtime.hosts.network import Place, choose, places
from holdfast.runtime.hosts.remote_host import RemoteShell
from holdfast.runtime.hosts.wire import (
    ANSWER,
    ANSWERS_WITHIN_S,
    EndHost,
    HostFacts,
    Question,
    Unasked,
    facts,
)
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.numerics import instruction_set, refuse_differences
from holdfast.runtime.system import network
from holdfast.runtime.system.channel import Message, to_message
from holdfast.runtime.system.daemon_executor import DaemonExecutor
from holdfast.runtime.system.network import MeetingPlace, interfaces
from holdfast.runtime.system.own_process import answer_of

_ONEDNN, _OPENBLAS, _XLA = "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "XLA_FLAGS"
_XLA_LIMIT = "--xla_cpu_max_isa"
_KERNELS = (
    *(("AVX512", "SKYLAKEX", "AVX512"), ("AVX2", "HASWELL", "AVX2")),
    *(("AVX", "SANDYBRIDGE", "AVX"), ("SSE41", "NEHALEM", "SSE4_2")),
)
"""The kernels of OpenBLAS and the limit of XLA for an instruction set, by how oneDNN's name of it
begins.  Both look at the model of the processor, too, so models with one instruction set may
differ in their bits."""

_LOCALHOST = "localhost"
_MOST_SENTENCES, _MOST_FLAGS = 4, 6
_SHOWN_LETTERS = 60
_TOLD_AFTER_S = 10.0
"""Longer than a host waits for the file that proves the run directory."""
SAME = "install the same on all hosts, or share one installation"
_LABEL = re.compile(r"\S+[:>|\])] *")
"""What tools for many hosts put before each line, such as ``b: ``."""
_TERMINAL = (
    "`{}` gives {} a terminal, which changes what passes: leave -t and the like out; ssh has -T"
)
_UNASKED = json.dumps(to_message(Unasked()), separators=(",", ":"))
_LAST_LINES = 2
_NOT_FOUND = (126, 127)
"""Exit codes of a shell that cannot start a command."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A host that was asked: what it has said, or why it has said nothing."""

    name: str
    facts: HostFacts | None = None
    fault: str = ""
    asked_at: float = 0.0
    answered_at: float = 0.0
    """By the clock of the head, in seconds since 1970."""

    @property
    def clock_ahead_s(self) -> float:
        """How far the host's clock is ahead of the head's, as far as that can be known."""
        clock = self.asked_at if self.facts is None else self.facts.clock
        return clock - min(max(clock, self.asked_at), self.answered_at)


@dataclass(frozen=True, slots=True)
class CheckedHosts:
    """The hosts of a job on which it may begin, that of the head first."""

    hosts: tuple[HostSlots, ...]
    network: IPv4Network
    threads: int
    """What each worker can have on every host."""
    facts: tuple[HostFacts, ...]
    """What each host has said, as ``hosts``."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What the environment of all processes must say, so that their processors compute alike."""
    unlike: tuple[str, ...] = ()
    """A sentence for each thing by which their bits may differ."""


def check_hosts(
    options: JobOptions,
    cwd: Path,
    hosts: tuple[HostSlots, ...],
    mpiexec: Path,
    lease: tuple[Path, str],
    tell: Callable[[str], None],
) -> CheckedHosts:
    """Ask all hosts of a job, that of the head first, and settle what it needs of them.

    ``lease`` is the file of the job's lease, and its token.  A person is told of a long wait.

    Raises:
        UsageError: a host does not answer, or differs in what must be the same.
    """
    names = [host.name for host in hosts]
    question = Question(cwd, options.script, *lease, mpiexec)
    asked, tried = ask_hosts(options, names, question, tell)
    refuse([one.fault for one in asked if one.fault])
    refuse([*differences(asked, question), *unlike_devices(hosts, asked)])
    found = [one.facts for one in asked if one.facts is not None]
    unlike = tuple(may_differ(hosts, found))
    if options.strict:
        refuse_differences("the hosts of the job differ", unlike)
    return CheckedHosts(
        hosts,
        choose(options.network, names, found, tried)[0],
        threads=threads_of_all(options.workers, hosts, found),
        facts=tuple(found),
        variables=common_numerics(os.environ, found),
        unlike=unlike,
    )


def ask_hosts(
    options: JobOptions, names: Sequence[str], question: Question, tell: Callable[[str], None]
) -> tuple[list[Asked], tuple[Place, ...]]:
    """Ask all hosts a question, and who reaches the head where; return where it listened, too.

    Raises:
        UsageError: the network that ``--network`` names is none of this host.
    """
    tried = places(options.network, interfaces(), names[0])
    word = secrets.token_hex(8)
    with MeetingPlace(tried, word) as meeting:
        question = replace(question, meetings=meeting.meetings, word=word)
        return ask_all(names, RemoteShell.of(options.rsh), question, tell), tried


def ask_all(
    names: Sequence[str],
    shell: RemoteShell,
    question: Question,
    tell: Callable[[str], None],
    told_after_s: float = _TOLD_AFTER_S,
) -> list[Asked]:
    """Ask all hosts at once; the first is this one."""
    executor = DaemonExecutor(len(names), "asking")
    others = [executor.submit(_ask, name, shell, question) for name in names[1:]]
    executor.shutdown()
    began = time.time()
    own = Asked(names[0], facts(question), asked_at=began, answered_at=time.time())
    late = wait(others, told_after_s).not_done
    if late:
        named = [name for name, other in zip(names[1:], others, strict=True) if other in late]
        tell(f"waiting for {_names(named)} to answer, {ANSWERS_WITHIN_S:.0f} s at most")
    return [own, *(other.result() for other in others)]


def _ask(name: str, shell: RemoteShell, question: Question) -> Asked:
    lines = [json.dumps(to_message(message)) for message in (question, EndHost())]
    began = time.time()
    try:
        text = "".join(f"{line}\n" for line in lines)
        ended = answer_of(shell.agent_on(name), ANSWERS_WITHIN_S, os.environ, text)
    except OSError as error:
        fault = f"--rsh {shell.program} cannot be started: {error.strerror}; name a remote shell"
        return Asked(name, fault=fault)
    except subprocess.TimeoutExpired:
        fault = f"{name} has not answered within {ANSWERS_WITHIN_S:g} s; leave it out, or mend it"
        return Asked(name, fault=fault)
    before, answer, after = _parts(ended.stdout)
    if lines[0] in ended.stdout or "\r\n" in ended.stdout:
        fault = _TERMINAL.format(shell.program, name)
    elif ended.returncode != 0 and answer != _UNASKED:
        fault = _failure(name, shell, ended)
    else:
        fault = _noise(name, shell, before, answer, after)
    if fault:
        return Asked(name, fault=fault)
    try:
        found = _facts_in(json.loads(answer))
    except ValueError as error:
        return Asked(name, fault=_other_answer(name, error))
    return Asked(name, found, asked_at=began, answered_at=time.time())


def _facts_in(line: Message) -> HostFacts:
    """Return what a host has answered; raises ``ValueError`` if it is something else."""
    found = ANSWER.decode(line)
    if not isinstance(found, HostFacts):
        raise ValueError(f"{type(found).__name__} came in place of HostFacts")
    return found


def _other_answer(name: str, error: ValueError) -> str:
    return f"the holdfast of {name} gives another answer ({error}): {SAME}"


def _parts(said: str) -> tuple[str, str, str]:
    """Return what a shell has printed before the answer, the answer, and what came after it."""
    found = re.search(r'\{".*\}', said)
    if found is None:
        return said, "", ""
    return said[: found.start()], found[0], said[found.end() :].strip()


def _noise(name: str, shell: RemoteShell, before: str, answer: str, after: str) -> str:
    """Return why what came back is no answer; "" if it is nothing but one."""
    if shell.is_srun and answer and before.endswith("\n"):  # its prolog may print
        before = ""
    program, noise = f"`{shell.program}`", (before.strip() or after)[:_SHOWN_LETTERS]
    if not answer:
        what = f"has said {noise!r}, and no answer" if noise else "has said nothing"
        return (
            f"{name} {what}: {program} must run a command there and pass on what that prints, and "
            "no .bashrc may end the shell"
        )
    if answer == _UNASKED:
        advice = "leave -n out (kubectl exec needs -i), and let no .bashrc read it"
        return f"{program} does not pass stdin on to {name}: {advice}"
    if _LABEL.fullmatch(before):
        when = f"before each line of {program}"
        advice = "let it label none (pdsh -N, clush -N, srun without -l)"
    elif before:
        when = "when a shell starts there"
        advice = "let .bashrc and the like print nothing without a terminal"
    else:
        when, advice = "after the answer", f"let {program} say nothing of its own"
    message = f"{name} prints {noise!r} {when}, and holdfast would take it for a message: {advice}"
    return message if noise else ""


def _failure(name: str, shell: RemoteShell, ended: subprocess.CompletedProcess[str]) -> str:
    """Return why a remote shell, or what it has started, has failed, in its own words."""
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    is_python = any(line.startswith("Traceback ") for line in lines)
    last = lines[-1:] if is_python else lines[-_LAST_LINES:]
    said = "; ".join(last).rstrip(".") or f"exit code {ended.returncode}"
    if ended.returncode in _NOT_FOUND or "can't open file" in said or "No module named" in said:
        return (
            f"{name} has no holdfast at {sys.executable}: {said}; install it there as it is here, "
            "or share one file system"
        )
    if shell.program == "ssh" and ended.returncode == 255:
        line = shlex.join([*shell.words, "-o", "BatchMode=yes", name, "true"])
        return (
            f"{name} cannot be reached by ssh: {said}; nobody is asked for a password, so "
            f"`{line}` must work"
        )
    if is_python:
        return f"holdfast fails on {name} ({said}): {SAME}"
    return f"{name} has not answered: {said}; `{shell.program}` must run a command there"


def refuse(sentences: list[str]) -> None:
    """Refuse a job for the faults of its hosts, if there are any.

    Raises:
        UsageError: the first of them.
    """
    if sentences:
        raise UsageError(_joined(sentences))


def _joined(sentences: Sequence[str]) -> str:
    more = len(sentences) - _MOST_SENTENCES
    rest = [f"and {more} more: `holdfast doctor --hosts` lists them all"] if more > 0 else []
    return ". ".join([*sentences[:_MOST_SENTENCES], *rest])


def why_not_again(
    hosts: Sequence[HostSlots],
    begun: Sequence[HostFacts],
    name: str,
    line: Message,
    question: Question,
    environment: Mapping[str, str],
) -> str:
    """Return what differs on a host that comes back to a job, and what to do; "" if nothing does.

    ``begun`` is what all hosts of the job have said at its start, ``line`` what this one says now,
    and ``environment`` that of the workers.
    """
    names = [host.name for host in hosts]
    try:
        found = _facts_in(line)
    except ValueError as error:
        return _other_answer(name, error)
    # What it has of the program may be another text by now: it runs what the job began with.
    now = [
        replace(host, program=dict.fromkeys(host.program, ""))
        for host in (found if of == name else one for of, one in zip(names, begun, strict=True))
    ]
    asked = [Asked(of, host) for of, host in zip(names, now, strict=True)]
    known = {*unlike_distributions([*zip(names, begun, strict=True)])}
    sentences = [
        *differences(asked, question),
        *unlike_devices(hosts, asked),
        *(s for s in unlike_distributions([*zip(names, now, strict=True)]) if s not in known),
    ]
    needed = common_numerics(environment, now)
    if needed:
        words = " ".join(f"{name}={value}" for name, value in needed.items())
        sentences.append(
            f"{name} has another processor by now, and its bits would differ: start the job again, "
            f"and all workers have {words}"
        )
    return _joined(sentences)


def differences(asked: Sequence[Asked], question: Question) -> Iterator[str]:
    """Yield a sentence for each thing that must be the same on all hosts, and is not."""
    head, *others = [(one.name, one.facts) for one in asked if one.facts is not None]
    yield from _same_host_twice([head, *others])
    for what, value in head[1].versions.items():
        found = {name: host.versions.get(what, "") for name, host in others}
        yield from _unlike(what, value, found, head[0])
    without = [name for name, host in others if not host.has_cwd]
    if without:
        yield f"the working directory {question.cwd} is not on {_names(without)}: share it"
    yield from _other_texts(question.script, head, others)
    strangers = [name for name, host in others if not host.has_token]
    if strangers:
        yield (
            f"the run directory {question.proof.parent} is not the same on {_names(strangers)} and "
            f"{head[0]}: choose one on a file system that all hosts share, by --run-dir"
        )


def unlike_devices(hosts: Sequence[HostSlots], asked: Sequence[Asked]) -> Iterator[str]:
    """Yield a sentence if hosts that take workers have devices of other kinds, or some have none.

    A sum has other bits on a processor than on a device, and on each kind of device.
    """
    kinds: dict[str, list[str]] = {}
    for host, one in zip(hosts, asked, strict=True):
        if host.slots and one.facts is not None:
            devices = one.facts.devices
            kind = ", ".join(devices.kinds or ("devices of no known kind",) * bool(devices.names))
            kinds.setdefault(kind or "no devices", []).append(host.name)
    if len(kinds) > 1:
        found = ", and ".join(f"{_names(names)} has {kind}" for kind, names in kinds.items())
        yield (
            f"{found}: their bits differ; take hosts with devices of one kind, or hide them all by "
            "CUDA_VISIBLE_DEVICES= on each host"
        )


def _same_host_twice(hosts: Sequence[tuple[str, HostFacts]]) -> Iterator[str]:
    first: dict[str, str] = {}
    for name, host in hosts:
        if host.identity in first:
            yield f"{first[host.identity]} and {name} are one host: name it once, with all slots"
        first.setdefault(host.identity, name)


def _unlike(what: str, value: str, found: Mapping[str, str], head: str) -> Iterator[str]:
    """Yield a sentence for each other value of something, with all hosts that have it."""
    for other in sorted(set(found.values()) - {value}):
        names = [name for name, theirs in found.items() if theirs == other]
        yield (
            f"{what} is {other or 'not installed'} on {_names(names)}, and "
            f"{value or 'not installed'} on {head}: {SAME}"
        )


def _other_texts(
    script: Path | None, head: tuple[str, HostFacts], others: Sequence[tuple[str, HostFacts]]
) -> Iterator[str]:
    for file in dict.fromkeys(file for _, host in (head, *others) for file in host.program):
        words = f"the {'script' if file == str(script) else 'module'} {file}"
        mine, texts = head[1].program.get(file), {n: host.program.get(file) for n, host in others}
        missing = [name for name, digest in texts.items() if digest is None]
        differing = [name for name, digest in texts.items() if digest not in (None, mine)]
        if missing:
            yield f"{words} is not on {_names(missing)}: copy it there, or share its folder"
        if differing:
            digests = f"{str(texts[differing[0]])[:8]}, not {str(mine)[:8]}"
            yield (
                f"{words} on {_names(differing)} is another one than on {head[0]} (SHA-256 "
                f"{digests}): copy it there, or share its folder"
            )


def may_differ(hosts: Sequence[HostSlots], found: Sequence[HostFacts]) -> Iterator[str]:
    """Yield a sentence for each thing by which the bits of hosts with workers may differ."""
    pairs = [(host.name, one) for host, one in zip(hosts, found, strict=True) if host.slots]
    yield from _unlike_processors(pairs)
    yield from unlike_distributions(pairs)


def unlike_distributions(pairs: Sequence[tuple[str, HostFacts]]) -> Iterator[str]:
    """Yield a sentence for each package that hosts have in other versions than the first one."""
    (first, head), *others = pairs
    for name in sorted({name for _, one in pairs for name in one.distributions}):
        found = {host: one.distributions.get(name, "") for host, one in others}
        yield from _unlike(name, head.distributions.get(name, ""), found, first)


def _unlike_processors(pairs: Sequence[tuple[str, HostFacts]]) -> Iterator[str]:
    """Yield a sentence if libraries may choose other kernels; what is not known is another one."""
    common = frozenset.intersection(*(one.flags for _, one in pairs))
    kinds: dict[str, list[str]] = {}
    for name, one in pairs:
        more = sorted(one.flags - common)
        rest = f" and {len(more) - _MOST_FLAGS} more" if len(more) > _MOST_FLAGS else ""
        kind = one.processor or "a processor of no known model"
        kind += f" with {', '.join(more[:_MOST_FLAGS])}{rest}" * bool(more)
        kinds.setdefault(kind + " of unknown abilities" * (not one.flags), []).append(name)
    is_known = all(one.processor and one.flags for _, one in pairs)
    if len(pairs) > 1 and (len(kinds) > 1 or not is_known):
        told = ", and ".join(f"{_names(names)} has {kind}" for kind, names in kinds.items())
        yield f"{told}: NumPy, XLA and others choose their kernels by that, and bits may differ"


def _names(names: Sequence[str]) -> str:
    """Return hosts in words, the first few of many."""
    shown, more = ", ".join(names[:_MOST_SENTENCES]), len(names) - _MOST_SENTENCES
    return f"{shown} and {more} more" if more > 0 else shown


def threads_of_all(workers: int, hosts: Sequence[HostSlots], found: Sequence[HostFacts]) -> int:
    """Return the threads that each worker can have on all hosts: cores are not shared."""
    placed = Counter(place_workers(workers, hosts))
    cores = {host.name: facts.cores for host, facts in zip(hosts, found, strict=True)}
    return max(1, min(cores[name] // count for name, count in placed.items()))


def common_numerics(environment: Mapping[str, str], found: Sequence[HostFacts]) -> dict[str, str]:
    """Return the variables by which libraries do on all hosts what all processors can.

    They are none if the processors are alike.  What the user has set stays.
    """
    if len({(host.processor, host.flags) for host in found}) == 1:
        return {}
    common = frozenset.intersection(*(host.flags for host in found))
    name = instruction_set(environment, common)
    known = next((known for known in _KERNELS if name.startswith(known[0])), None)
    if known is None:
        return {}
    are_unlike = len({instruction_set(environment, host.flags) for host in found}) > 1
    limits = {_ONEDNN: name} if are_unlike else {}
    if not environment.get(_OPENBLAS):
        limits[_OPENBLAS] = known[1]
    flags = environment.get(_XLA, "")
    if _XLA_LIMIT not in flags:
        limits[_XLA] = f"{flags} {_XLA_LIMIT}={known[2]}".strip()
    return limits


def settle_hosts(options: JobOptions) -> tuple[HostSlots, ...]:
    """Return the hosts of a job, the head's first; none if this host is the only one.

    Hosts come from ``--hosts``, ``--hostfile`` or the batch system: the options hold them all.
    If none of them is this host, it has the head alone, and takes no worker.
    """
    if not options.hosts:
        return ()
    own = own_host(options.hosts)
    others = tuple(host for host in options.hosts if host is not own)
    if not others:
        return ()
    if own is None:
        return (HostSlots(network.own_name(), 0), *others)
    name = network.own_name() if _without_user(own.name) == _LOCALHOST else own.name
    return (replace(own, name=name), *others)


def own_host(
    hosts: Sequence[HostSlots],
    own_names: Callable[[], frozenset[str]] = network.own_names,
    is_own: Callable[[str], bool] = network.is_own_name,
) -> HostSlots | None:
    """Return the first of ``hosts`` that is this one, None if none is.

    Names are compared first: a resolver may take seconds for each name that it does not know.
    """
    known = own_names() | {_LOCALHOST}
    for host in hosts:
        if _without_user(host.name) in known:
            return host
    return next((host for host in hosts if is_own(_without_user(host.name))), None)


def _without_user(name: str) -> str:
    """Return a host as it is called by itself: ``ssh`` takes ``user@host``."""
    return name.rpartition("@")[2]
