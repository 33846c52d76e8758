"""A head as its client sees it: how it is started or found, asked whether it lives, and ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from holdfast.runtime.errors import RecoveryImpossible, RunDirectoryBusy
from holdfast.runtime.head import __main__ as head_main
from holdfast.runtime.head import head_process
from holdfast.runtime.head.head_process import (
    HeadProcess,
    HeadTerms,
    OwnerEnded,
    another_job,
    begin_head,
    connect_to_head,
    find_owner,
)
from holdfast.runtime.head.visits import (
    AnotherJob,
    ClientPing,
    ClientRefused,
    ClientTaken,
    JobStarting,
    ShowJob,
)
from holdfast.runtime.host.pool_process import ENTRY
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import FDS, Channel, pair, to_message
from holdfast.runtime.system.processes import HeldProcess

LISTENER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("agent.sock")
listener.listen()
client = listener.accept()[0].makefile("rb")
with open("heard", "wb") as heard:
    heard.write(b"%s %d %s\\n" % (
        os.environb[b"PYTHONHASHSEED"], os.getsid(0) == os.getpid(), os.environb[b"A"],
    ))
    heard.writelines(client)
"""
SCRIPT = Path("/a/slow.py")
RUN = Path("/my runs/1")


def terms(directory: Path, *, is_verbose: bool = False) -> HeadTerms:
    return HeadTerms(
        directory=directory,
        cwd=directory,
        environment={},
        heartbeat_timeout_s=2.5,
        preload=("numpy", "keras"),
        lease=2,
        verbose=is_verbose,
    )


@pytest.mark.parametrize("is_verbose", [False, True])
def test_head_reads_the_terms_that_it_was_started_on(tmp_path: Path, *, is_verbose: bool) -> None:
    command = terms(tmp_path, is_verbose=is_verbose).command()

    options = head_main._parse(command[command.index("holdfast.runtime.head") + 1 :])

    assert options.directory == tmp_path
    assert (options.parent, options.lease_fd) == (os.getpid(), 2)
    assert (options.heartbeat_timeout, options.verbose) == (2.5, is_verbose)
    assert head_main._names(options.preload) == ("numpy", "keras")
    assert options.entry == ENTRY


class FakeProcess:
    """A process that has ended at the given looks."""

    pid = 4711

    def __init__(self, *ends: bool) -> None:
        self._ends = iter(ends)
        self.done: list[str] = []

    def kill(self) -> None:
        self.done.append("killed")

    def has_ended(self, within_s: float) -> bool:
        self.done.append(f"waited {within_s:.0f} s")
        return next(self._ends)

    def close(self) -> None:
        self.done.append("closed")


@dataclass
class Held:
    """A head in this process, and the other end of its channel."""

    head: HeadProcess
    process: FakeProcess
    theirs: Channel

    def close(self) -> None:
        self.head.channel.close()
        self.theirs.close()


@pytest.fixture
def hold() -> Callable[..., Held]:
    def held(*ends: bool) -> Held:
        ours, theirs = pair()
        process = FakeProcess(*ends)
        return Held(HeadProcess(ours, cast(HeldProcess, process), 6.0), process, theirs)

    return held


Hold = Callable[..., Held]


def test_each_look_asks_for_a_sign_of_life_and_tells_of_the_terminal(hold: Hold) -> None:
    held = hold()

    held.head.silence_s(1.0, 0)
    held.head.silence_s(2.0, 99)

    assert held.theirs.drain() == [to_message(ClientPing(columns)) for columns in (0, 99)]
    held.close()


@pytest.mark.parametrize(
    ("ends", "done"),
    [
        ((True,), ["waited 30 s", "closed"]),
        ((False, True), ["waited 30 s", "killed", "waited 10 s", "closed"]),
        ((False, False), ["waited 30 s", "killed", "waited 10 s", "closed"]),
    ],
    ids=["at once", "when it is killed", "never"],
)
def test_head_whose_job_is_over_is_killed_only_if_it_does_not_end(
    hold: Hold, ends: tuple[bool, ...], done: list[str]
) -> None:
    held = hold(*ends)

    held.head.end()

    assert held.theirs.drain() == []
    assert held.theirs.is_closed
    assert held.process.done == done
    held.close()


@dataclass(frozen=True)
class ShellTerms(HeadTerms):
    """The terms of a shell that stands for the head."""

    script: str = ""

    def command(self) -> list[str]:
        """Return the shell's command line."""
        return ["sh", "-c", f"echo >> starts; {self.script}"]


def shell(directory: Path, script: str) -> ShellTerms:
    return ShellTerms(
        directory=directory,
        cwd=directory,
        environment={"PATH": os.environ["PATH"], "A": "1"},
        heartbeat_timeout_s=2.5,
        preload=(),
        lease=2,
        verbose=False,
        script=script,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "code", "starts"), [("exit 3", "3", 1), ("kill -KILL $$", "-9", 3)]
)
def test_only_a_head_that_was_struck_is_started_again_and_not_for_ever(
    tmp_path: Path, script: str, code: str, starts: int
) -> None:
    with pytest.raises(
        RecoveryImpossible, match=rf"did not start \(exit code {code}\); .* `holdfast doctor`"
    ):
        connect_to_head(shell(tmp_path, script))

    assert (tmp_path / "starts").read_text() == "\n" * starts


@pytest.mark.process
def test_head_that_cannot_be_started_is_asked_for_again_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory, which the last head has taken with it, is made again."""
    monkeypatch.setattr(head_process, "_STARTS_WITHIN_S", 0.0)
    gone = replace(shell(tmp_path / "base", "exit 3"), cwd=tmp_path / "nowhere")

    with pytest.raises(RecoveryImpossible, match=r"no agent of this host can be started: .*nowher"):
        connect_to_head(gone)

    assert (tmp_path / "base").is_dir()


@pytest.mark.process
def test_head_that_is_stopped_before_it_listens_is_killed_and_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    monkeypatch.setattr(head_process, "SHORTEST_SILENCE_S", 0.0)
    script = f"test $(wc -l < starts) = 1 && kill -STOP $$; exec {sys.executable} -S listener.py"

    connect_to_head(shell(tmp_path, script)).end()

    assert (tmp_path / "starts").read_text() == "\n\n"


@pytest.mark.process
@pytest.mark.parametrize("is_struck", [False, True])
def test_head_that_was_begun_is_spoken_to_or_followed_by_another(
    tmp_path: Path, *, is_struck: bool
) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    wanted = shell(tmp_path, f"exec {sys.executable} -S listener.py")
    begun = begin_head(shell(tmp_path, "kill -KILL $$") if is_struck else wanted)
    if is_struck:
        begun.wait()

    head = connect_to_head(wanted, begun)
    assert (head.child == begun.pid) is not is_struck
    assert head.child == head.pid
    head.channel.post({"kind": "client", "job": {}})
    head.end()

    assert (tmp_path / "starts").read_text() == "\n" * (1 + is_struck)
    assert (tmp_path / "heard").read_text().splitlines() == [
        "0 1 1",
        '{"kind":"client","job":{}}',
    ]


@pytest.mark.parametrize(
    ("asked", "difference"),
    [
        (JobOptions(SCRIPT, RUN, fresh=True), "and which --fresh would set aside; "),
        (JobOptions(Path("/b/train.py"), RUN), "and which runs another script, /a/slow.py; "),
        (
            JobOptions(SCRIPT, RUN, argv=("--foo", "a b")),
            "(its: --epochs 3; asked for: --foo 'a b'); ",
        ),
        (JobOptions(SCRIPT, RUN), "(its: --epochs 3; asked for: none); "),
    ],
)
def test_difference_is_named_with_the_command_that_goes_on(
    asked: JobOptions, difference: str
) -> None:
    its = [False, str(SCRIPT), "--epochs", "3"]

    text = another_job(RunDirectory(RUN), its, asked)

    assert difference in text
    assert "look at it with `holdfast attach '/my runs/1'`" in text


@dataclass
class Orphan:
    """A run directory whose lease names a head, and the head's end of the connection."""

    directory: RunDirectory
    lease: Lease
    asks: Channel
    answers: Channel

    def close(self) -> None:
        self.lease.release()
        self.asks.close()
        self.answers.close()


@pytest.fixture
def orphan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orphan]:
    directory = RunDirectory(tmp_path)
    directory.prepare()
    made = Orphan(directory, directory.acquire_lease(), *pair())
    made.lease.name_head(os.getpid(), tmp_path / "agent.sock", client=os.getpid())
    monkeypatch.setattr(head_process, "connect", lambda path: made.asks)
    monkeypatch.setattr(head_process, "ANSWERS_WITHIN_S", 0.0)  # what it says was said before
    yield made
    made.close()


def test_job_that_lives_is_found_as_it_stands(orphan: Orphan) -> None:
    greeting = ClientTaken({"a": 1}, 2, "/tmp/a", "/", {})
    orphan.answers.post(to_message(greeting), (orphan.lease.fileno(),))

    found = find_owner(orphan.directory)

    assert found is not None
    assert (found.channel, found.process.pid) == (orphan.asks, os.getpid())
    assert found.greeting == greeting
    assert os.path.samestat(os.fstat(found.lease), orphan.directory.lease_path.stat())
    found.process.close()
    os.close(found.lease)


@pytest.mark.parametrize(
    ("asked", "job"),
    [
        (None, None),
        (JobOptions(SCRIPT, RUN, argv=("--lr", "1")), [False, "/a/slow.py", "--lr", "1"]),
        (JobOptions(SCRIPT, RUN, fresh=True), [True, "/a/slow.py"]),
    ],
    ids=["attach", "run", "run --fresh"],
)
def test_head_is_told_what_job_is_asked_for_and_where_its_output_goes(
    orphan: Orphan, asked: JobOptions | None, job: list[object] | None
) -> None:
    orphan.answers.post(to_message(JobStarting()))

    with pytest.raises(RunDirectoryBusy):
        find_owner(orphan.directory, asked)

    (question,) = orphan.answers.drain()
    streams = question.pop(FDS)
    assert question == to_message(ShowJob(job and tuple(job)))
    for number, stream in enumerate(streams, start=1):
        assert os.path.samestat(os.fstat(stream), os.fstat(number))
        os.close(stream)
    assert len(streams) == 2
    assert orphan.asks.is_closed


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            ClientRefused(12),
            "another job, which pid 12 shows; wait for it to end, stop it with `holdfast stop`, or",
        ),
        (JobStarting(), "a job that is just starting; run again in a minute"),
        (AnotherJob((False, "/b.py")), "another script, /b.py; look at it"),
        (None, f"a job whose head, pid {os.getpid()}, does not answer; let it go on"),
    ],
    ids=["attached already", "not launched", "another job", "silent"],
)
def test_job_that_cannot_be_shown_is_told_with_what_to_do(
    orphan: Orphan, answer: object, why: str
) -> None:
    if answer is not None:
        orphan.answers.post(to_message(answer))

    with pytest.raises(RunDirectoryBusy, match=f"run directory .* belongs to .*{why}") as refusal:
        find_owner(orphan.directory, JobOptions(SCRIPT, RUN))

    assert not isinstance(refusal.value, OwnerEnded)


def test_run_whose_head_is_gone_has_nobody_to_be_found(orphan: Orphan) -> None:
    orphan.answers.close()

    assert find_owner(orphan.directory) is None
    assert orphan.asks.is_closed


def test_run_without_a_head_has_nobody_to_be_found(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    assert find_owner(directory) is None  # nobody ever owned it

    lease = directory.acquire_lease()
    assert find_owner(directory) is None  # its owner has started no head
    lease.name_head(os.getpid(), tmp_path / "agent.sock")
    assert find_owner(directory) is None  # nobody listens
    lease.release()


@pytest.mark.process
@pytest.mark.parametrize("client", ["lives", "is gone", "is unknown"])
def test_stopped_head_is_ended_only_if_no_client_watches_it(
    orphan: Orphan, monkeypatch: pytest.MonkeyPatch, client: str
) -> None:
    """A batch system that suspends a job stops its client as well, which still lives."""
    head = subprocess.Popen(["sleep", "600"])
    head.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, head.pid, os.WSTOPPED | os.WNOWAIT)
    monkeypatch.setattr(HeldProcess, "of_peer", lambda channel: HeldProcess(head.pid))
    named = orphan.directory.lease_owner()
    if client == "is gone":
        named["client"] = _pid_of_a_dead_process()
    elif client == "is unknown":
        del named["client"]
    orphan.directory.lease_path.write_text(json.dumps(named))
    is_ended = client == "is gone"

    with pytest.raises(RunDirectoryBusy, match=str(head.pid)) as owner:
        find_owner(orphan.directory)

    has_ended = head.poll() is not None
    head.kill()
    head.wait()
    assert has_ended is is_ended is isinstance(owner.value, OwnerEnded)


def _pid_of_a_dead_process() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


@pytest.mark.process
@pytest.mark.parametrize("head", ["lives", "is gone"])
@pytest.mark.parametrize("is_run", [True, False], ids=["run", "attach"])
def test_client_that_is_stopped_is_named_with_what_lets_it_go_on(
    orphan: Orphan, head: str, *, is_run: bool
) -> None:
    client = subprocess.Popen(["sleep", "600"])
    client.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, client.pid, os.WSTOPPED | os.WNOWAIT)
    named = orphan.directory.lease_owner() | {"client": client.pid}
    if head == "is gone":
        named["agent"] = str(orphan.directory.path / "nowhere")
    orphan.directory.lease_path.write_text(json.dumps(named))
    orphan.answers.post(to_message(ClientRefused(client.pid)))

    with pytest.raises(RunDirectoryBusy) as owner:
        find_owner(orphan.directory, JobOptions(SCRIPT, RUN) if is_run else None)

    client.kill()
    client.wait()
    assert str(owner.value).endswith(
        f"belongs to a job whose client, pid {client.pid}, is stopped; let it go on (kill -CONT "
        f"{client.pid}), or end it (kill -KILL {client.pid}), then ask again"
    )


def test_attach_to_a_job_that_has_its_client_says_that_nothing_is_to_be_done(
    orphan: Orphan,
) -> None:
    orphan.answers.post(to_message(ClientRefused(12)))

    with pytest.raises(RunDirectoryBusy, match="a job that pid 12 shows already; it needs no"):
        find_owner(orphan.directory)
