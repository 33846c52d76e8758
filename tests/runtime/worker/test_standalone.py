"""What the ranks of a script that nobody launched tell each other before they train."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.errors import RunDirectoryBusy, UsageError
from holdfast.runtime.exchange.local_communicator import LocalCommunicator
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.worker import standalone


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


def test_end_of_the_training_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    for is_first in (False, True):
        standalone._tell({"kind": "complete", "is_first": is_first, "step": 7, "sha256": "ab"})
    standalone._tell({"kind": "notice", "text": "x"})

    assert capsys.readouterr().err == "holdfast: completed step 7, state sha256 ab\n"


def test_each_epoch_is_said_unless_nobody_wants_to_hear(
    capsys: pytest.CaptureFixture[str],
) -> None:
    epoch = {"kind": "epoch", "epoch": 1, "step": 7, "epochs": 2, "metrics": {"loss": 0.5}}

    standalone._tell(epoch)
    standalone._tell({**epoch, "verbose": 0})
    standalone._tell(epoch, is_quiet=True)

    assert capsys.readouterr().out == "Epoch 1/2 - loss: 0.5000\n"
