"""How a script that nobody launched begins and ends, and what its ranks tell each other."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.errors import RunDirectoryBusy, StopRequested, UsageError
from holdfast.runtime.exchange.communicator import LocalCommunicator
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system import witnessed_time
from holdfast.runtime.worker import context as contexts
from holdfast.runtime.worker import standalone
from holdfast.runtime.worker.context import journal_of


class Rank(LocalCommunicator):
    """One of two ranks; ``first`` is what rank 0 says, which rank 0 itself leaves there."""

    size = 2

    def __init__(self, rank: int, first: bytes = b"") -> None:
        super().__init__()
        self._number = rank
        self.first = first

    @property
    def rank(self) -> int:
        return self._number

    def allgather_bytes(self, payload: bytes) -> list[bytes]:
        self.first = payload if self.rank == 0 else self.first
        return [self.first, b""]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDirectory]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train.py"])
    held: list[Any] = []
    monkeypatch.setattr(standalone, "_hold", held.append)
    yield RunDirectory(tmp_path / "holdfast-train")
    for lease in held:
        lease.release()


def test_all_ranks_hold_the_lease(directory: RunDirectory) -> None:
    first = Rank(0)
    configs = [standalone._agreed_config(first)]
    configs.append(standalone._agreed_config(Rank(1, first.first)))

    assert [config.worker for config in configs] == [0, 1]
    assert configs[0].run_id == configs[1].run_id
    with pytest.raises(RunDirectoryBusy):
        directory.acquire_lease()
    directory.join_lease().release()


def test_every_rank_refuses_what_the_first_refuses(directory: RunDirectory) -> None:
    directory.prepare()
    lease = directory.acquire_lease()
    first = Rank(0)

    with pytest.raises(RunDirectoryBusy) as refused:
        standalone._agreed_config(first)
    with pytest.raises(RunDirectoryBusy) as followed:
        standalone._agreed_config(Rank(1, first.first))

    lease.release()
    assert str(followed.value) == str(refused.value)


def test_rank_of_a_job_that_was_replaced_is_refused(directory: RunDirectory) -> None:
    """A file system without locks lets it open the lease of the next job."""
    first = Rank(0)
    standalone._agreed_config(first)
    said = json.loads(first.first)
    said["config"]["lease_token"] = "an older one"

    with pytest.raises(RunDirectoryBusy):
        standalone._agreed_config(Rank(1, json.dumps(said).encode()))


def test_busy_directory_is_waited_for_if_that_was_asked_for(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory.prepare()
    lease, now = directory.acquire_lease(), [50.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] == 60.0:
            lease.release()

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(standalone, "time", clock)
    monkeypatch.setattr(witnessed_time, "time", clock)
    monkeypatch.setenv("HOLDFAST_WAIT_LEASE", "2")
    with pytest.raises(RunDirectoryBusy):
        standalone._agreed_config(Rank(0))
    monkeypatch.setenv("HOLDFAST_WAIT_LEASE", "90")

    assert standalone._agreed_config(Rank(0)).lease_token != ""

    assert now == [60.0]
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" at most: ")[0] for line in said] == [
        "holdfast: waiting for 2 s",
        "holdfast: waiting for 90 s",
    ]


def test_checkpoints_without_their_record_are_refused_without_a_lease(
    directory: RunDirectory,
) -> None:
    """The lease would end the saves of a job that has made its directory again."""
    (directory.checkpoints_path / "step-000000000040").mkdir(parents=True)

    with pytest.raises(UsageError, match="holds checkpoints but no"):
        standalone._agreed_config(Rank(0))

    assert not directory.lease_path.exists()


@pytest.mark.parametrize("way", ["well", "badly", "among others", "badly among others"])
def test_end_is_said_in_the_lease_unless_others_may_live(
    directory: RunDirectory, ends: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    directory.prepare()
    monkeypatch.setattr(standalone, "_lease", directory.acquire_lease())
    error = UsageError("no such option")

    if way == "well":
        standalone._end_lease()
    elif way == "among others":
        standalone._leave(LocalCommunicator())
    else:

        def die(pid: int, number: int) -> None:
            raise InterruptedError

        monkeypatch.setattr(os, "kill", die)
        with contextlib.suppress(InterruptedError):
            standalone._die_with_words(is_mpi=way != "badly")(UsageError, error, None)

    assert directory.lease_owner().get("ended") == (None if way == "badly among others" else True)


def test_only_the_first_rank_reads_options(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Rank(0)
    standalone._agreed_config(first)
    monkeypatch.setenv("HOLDFAST_SEED", "not one")

    assert standalone._agreed_config(Rank(1, first.first)).seed == 0


def test_mistake_of_the_first_rank_ends_the_others(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("a disk")

    monkeypatch.setattr(standalone, "next_generation", fail)
    first = Rank(0)

    with pytest.raises(OSError, match="a disk"):
        standalone._agreed_config(first)

    assert json.loads(first.first) == {"refused": "a disk", "kind": "OSError"}
    with pytest.raises(standalone.ProgramError, match="a disk"):
        standalone._agreed_config(Rank(1, first.first))


def test_unknown_option_in_the_file_is_refused(directory: RunDirectory) -> None:
    Path("holdfast.toml").write_text("[run]\nsave-evry = 7\n")

    with pytest.raises(UsageError, match=r"holdfast.toml sets unknown options .*: save-evry"):
        standalone._agreed_config(Rank(0))


def test_notebook_shows_one_sentence_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))

    with pytest.raises(UsageError) as caught:
        standalone.standalone()

    (line,) = caught.value._render_traceback_()  # as IPython asks
    assert line.startswith("holdfast: error: a notebook has no script")
    assert "!holdfast run -n 4 train.py" in line


def test_end_of_the_training_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    for is_first in (False, True):
        standalone._tell({"kind": "complete", "is_first": is_first, "step": 7, "sha256": "ab"})
    standalone._tell({"kind": "notice", "text": "x"})
    standalone._tell({"kind": "notice", "text": "y", "is_trouble": True}, is_quiet=True)

    assert capsys.readouterr().err == "holdfast: completed step 7, state sha256 ab\nholdfast: y\n"


def test_each_epoch_is_said_unless_nobody_wants_to_hear(
    capsys: pytest.CaptureFixture[str],
) -> None:
    epoch = {"kind": "epoch", "epoch": 1, "step": 7, "epochs": 2, "metrics": {"loss": 0.5}}

    standalone._tell(epoch)
    standalone._tell({**epoch, "verbose": 0})
    standalone._tell(epoch, is_quiet=True)

    assert capsys.readouterr().out == "Epoch 1/2 - loss: 0.5000\n"


def first_config(monkeypatch: pytest.MonkeyPatch) -> WorkerConfig:
    """Return what a script runs on that is run once more, by two ranks."""
    leases: list[Any] = []
    monkeypatch.setattr(standalone, "_hold", leases.append)
    config = standalone._agreed_config(Rank(0))
    leases[0].release()
    return config


def test_script_that_is_run_again_goes_on_with_its_run_in_a_new_generation(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = first_config(monkeypatch)
    journal = journal_of(first)
    journal.record("world", generation=first.generation + 4)
    journal.close()

    again = first_config(monkeypatch)

    assert (first.generation, again.generation) == (1, 6)
    assert (again.run_id, again.run_dir) == (first.run_id, directory.path)
    assert again.workers == (0, 1)
    assert (again.options.workers, again.microbatches) == (2, 2)


def test_fresh_start_sets_the_run_aside(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = first_config(monkeypatch)
    monkeypatch.setenv("HOLDFAST_FRESH", "1")

    again = first_config(monkeypatch)

    assert again.run_id != first.run_id
    assert (directory.path / "previous-1" / "RUN.json").exists()


def test_environment_comes_before_the_file(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("holdfast.toml").write_text("[run]\nseed = 7\nthreads = 1\n")
    monkeypatch.setenv("HOLDFAST_SEED", "9")

    config = first_config(monkeypatch)

    assert (config.seed, config.threads) == (9, 1)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """How this process would have ended: each signal that it sent itself, and its exit."""
    found: list[tuple[str, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: found.append(("signal", number)))
    monkeypatch.setattr(os, "_exit", lambda code: found.append(("exit", int(code))))
    return found


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (UsageError("no such option"), 2, "holdfast: error: no such option\n"),
        (StopRequested("run again"), 75, "holdfast: error: run again\n"),
        (KeyError("loss"), 1, "KeyError: 'loss'\n"),
    ],
    ids=["job", "stop", "script"],
)
def test_script_by_itself_ends_with_words_and_a_code(
    ends: list[tuple[str, int]],
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    said: str,
) -> None:
    standalone._die_with_words(is_mpi=False)(type(error), error, None)

    assert ends == [("exit", code)]
    assert capsys.readouterr().err == said


def test_rank_of_mpiexec_dies_as_its_survivors_can_see(
    ends: list[tuple[str, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    error = UsageError("no such option")

    standalone._die_with_words(is_mpi=True)(UsageError, error, None)

    assert ends[0] == ("signal", signal.SIGKILL)
    assert capsys.readouterr().err == "holdfast: error: no such option\n"


def test_script_that_ended_well_leaves_when_all_leave(ends: list[tuple[str, int]]) -> None:
    left: list[list[tuple[str, int]]] = []

    class Leaving(LocalCommunicator):
        def leave(self) -> None:
            left.append(list(ends))

    standalone._leave(Leaving())

    assert left == [[]]
    assert ends == [("exit", 0)]


@pytest.mark.parametrize("failure", [None, StopRequested("run again")], ids=["well", "caught"])
def test_script_that_has_caught_the_end_of_its_training_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException | None
) -> None:
    died: list[BaseException] = []
    monkeypatch.setattr(contexts, "_failure", failure)
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: died.append(error))

    standalone._die_of_caught_failure()

    assert died == ([] if failure is None else [failure])


class Broken(io.StringIO):
    """A stream that takes nothing any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [None, Broken()], ids=["closed", "broken"])
def test_stream_that_takes_nothing_ends_no_training(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO | None
) -> None:
    monkeypatch.setattr(sys, "stdout", stream)

    standalone._tell({"kind": "epoch", "epoch": 1, "step": 7})


def test_script_by_itself_has_neither_agent_nor_peers(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_exit: list[object] = []
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(standalone, "atexit", SimpleNamespace(register=at_exit.append))
    before = sys.excepthook

    context = standalone.standalone()

    assert (context.communicator.size, context.config.workers) == (1, (0,))
    assert (context.ask_agent, context.send_snapshot) == (None, None)
    last = standalone._end_lease  # called in the reverse order
    assert at_exit == [last, context.journal.close, standalone._die_of_caught_failure]
    assert sys.excepthook is not before
    context.journal.close()
    context.page.close()
