"""With an agent a restore reads, and the host's writer mends: one process changes checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from host_saves import plan_of
from host_writer import RunningWriter
from mirrored_run import WRITERS, flip_a_byte, mirrored_run, shard, there
from resumed_run import Run

from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.runtime.saving import writer as writer_module
from holdfast.runtime.saving.committer import Committer
from holdfast.runtime.saving.mending import Mender
from holdfast.runtime.saving.plan import MendOrder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return mirrored_run(tmp_path, monkeypatch)


@pytest.fixture
def writer(run: Run) -> Iterator[RunningWriter]:
    """Return a writer that has no plan yet, as after the death of the one before."""
    writer = RunningWriter()
    asking = threading.Lock()

    def ask(question: dict[str, Any]) -> dict[str, Any]:
        with asking:
            return writer.ask(**question)

    run.ask_agent = ask
    yield writer
    writer.close()


@pytest.mark.parametrize("ranks", [1, 3])
def test_writer_mends_before_any_plan_and_tells_it(
    run: Run, writer: RunningWriter, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    flip_a_byte(run.store, shard(1), 5000)
    changed_by: set[int | None] = set()
    rename = LocalFileSystem.rename_noreplace

    def noted(files: LocalFileSystem, source: Path, target: Path) -> None:
        changed_by.add(run.rank_of(threading.get_ident()))
        rename(files, source, target)

    monkeypatch.setattr(LocalFileSystem, "rename_noreplace", noted)

    assert run.restore(ranks) == [(20, 2.0)] * ranks

    (mended,) = run.journal("mended")
    assert mended["source"] == "snapshot writer"
    assert (mended["taken"], mended["holder"]) == (1, str(run.second_holder))
    assert [text for text in writer.notices if "was mended" in text]
    assert changed_by == {None}, "no worker has changed a name"
    assert writer.being_written, "the agent knows that it works"


def test_step_that_only_the_mirror_has_is_put_in_place_by_the_writer(
    run: Run, writer: RunningWriter
) -> None:
    run.save(30, 3.0, WRITERS)
    (run.directory / "checkpoints/step-000000000030").rename(
        there(run).directory / "step-000000000030"
    )

    assert run.restore(2) == [(30, 3.0)] * 2
    assert run.journal("mended")[0]["source"] == "snapshot writer"


def test_what_the_writer_cannot_mend_it_tells_and_all_go_on_from_the_older_step(
    run: Run, writer: RunningWriter
) -> None:
    for store in (run.store, there(run)):
        flip_a_byte(store, shard(1), 5000)

    assert run.restore(2) == [(10, 1.0)] * 2
    (failed,) = run.journal("mend_failed")
    assert failed["source"] == "snapshot writer"
    assert "neither holder has" in failed["reason"]


def test_writer_that_dies_while_it_mends_costs_one_step_and_a_line(
    run: Run, writer: RunningWriter
) -> None:
    flip_a_byte(run.store, shard(1), 5000)
    alive = run.ask_agent
    assert alive is not None

    def die(question: dict[str, Any]) -> dict[str, Any]:
        if question["kind"] != "mend":
            return alive(question)
        reason = "the process that writes snapshots has died"
        return {"kind": "mended", "step": None, "result": None, "reason": reason}

    run.ask_agent = die

    assert run.restore(2) == [(10, 1.0)] * 2
    (failed,) = run.journal("mend_failed")
    assert (failed["step"], failed["holder"]) == (20, "the host's writer")
    assert "has died" in failed["reason"]


def test_care_of_the_launch_before_ends_before_a_mend(
    run: Run, writer: RunningWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes the staging of older generations, and a mend stages an old step."""
    done: list[str] = []
    close, mend = Committer.close, Mender.mend

    def closing(committer: Committer, within_s: float) -> None:
        close(committer, within_s)
        done.append("closed")

    def mending(mender: Mender, step: int) -> object:
        done.append("mends")
        return mend(mender, step)

    monkeypatch.setattr(Committer, "close", closing)
    monkeypatch.setattr(writer_module.Mender, "mend", mending)
    writer.plan(plan_of(run.directory))
    flip_a_byte(run.store, shard(1), 5000)

    assert run.restore(1) == [(20, 2.0)]

    assert done == ["closed", "mends"]


def test_order_survives_its_way_as_a_message(tmp_path: Path) -> None:
    order = MendOrder(20, tmp_path, "run", "token", None, (tmp_path / "a", tmp_path / "b"))

    assert MendOrder.of(order.as_json()) == order
