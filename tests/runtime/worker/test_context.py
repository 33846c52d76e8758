"""A worker's surroundings: who makes them, what they say to its agent, and what they remember."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from configs import gives_nothing, journal_of, without_faults, worker_config
from local_communicator import LocalCommunicator

from holdfast.recovery.fault import Site
from holdfast.recovery.schedule import FailureHistory
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Journal, read_journal
from holdfast.runtime.system.channel import to_message
from holdfast.runtime.worker import context as contexts
from holdfast.runtime.worker.context import (
    TrainingRefused,
    WorkerContext,
    injector_of,
    is_refused,
    training_refused,
)
from holdfast.runtime.worker.injector import InjectedFault


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_current", None)
    monkeypatch.setattr(contexts, "trainings", contexts.Trainings())
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK", raising=False)


class Ranked(LocalCommunicator):
    """A communicator that has only a rank."""

    rank = 2


def context_of(config: WorkerConfig, told: list[dict[str, object]] | None = None) -> WorkerContext:
    """Return surroundings without a page and a journal."""
    nothing: Any = None
    tell = ([] if told is None else told).append
    injector = without_faults(config)
    return WorkerContext(config, Ranked(), nothing, nothing, injector, tell, gives_nothing)


@pytest.fixture
def config(tmp_path: Path) -> WorkerConfig:
    return worker_config(3, (3, 4), run_dir=tmp_path, run_id="run")


@pytest.fixture
def journal(config: WorkerConfig) -> Iterator[Journal]:
    journal = journal_of(config)
    yield journal
    journal.close()


BARE = """
import numpy as np
from holdfast import ArrayData, Trainer

class Model:
    pass

data = ArrayData(np.zeros((4, 1)), np.zeros(4))
trainer = Trainer(Model, data, global_batch=2, epochs=1)
trainer.run()
"""


def test_script_that_nobody_launched_ends_with_the_command_that_starts_it(tmp_path: Path) -> None:
    (tmp_path / "my train.py").write_text(BARE)
    line = [sys.executable, "my train.py", "--epochs", "20"]

    found = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert found.stderr == (
        "holdfast: error: this script trains with holdfast, which starts its workers: run "
        "`holdfast run -n 1 'my train.py' --epochs 20`\n"
    )
    assert (found.returncode, found.stdout) == (ExitCode.USAGE, "")
    assert [found.name for found in tmp_path.iterdir()] == ["my train.py"]


def test_training_without_a_file_is_told_to_get_one() -> None:
    code = "from holdfast.runtime.worker.context import current; current()"

    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )

    assert (found.returncode, found.stderr) == (
        ExitCode.USAGE,
        "holdfast: error: there is no script that workers could run: write it to a file, and start "
        "that: holdfast run -n 1 train.py\n",
    )


def test_notebook_shows_one_sentence_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)

    with pytest.raises(UsageError) as caught:
        contexts.current()

    (line,) = caught.value._render_traceback_()  # as IPython asks
    assert line.startswith("holdfast: error: a notebook has no script")
    assert "!holdfast run -n 4 train.py" in line


def test_rank_is_that_of_the_world_else_that_of_mpiexec_else_the_first(
    config: WorkerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = [contexts.rank()]
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
    ranks.append(contexts.rank())
    contexts.install(context_of(config))
    ranks.append(contexts.rank())

    assert ranks == [0, 5, 2]


def test_steps_that_any_launch_has_rejected_are_unsound(config: WorkerConfig) -> None:
    history = FailureHistory(rejected=(10, 20))
    context = context_of(dataclasses.replace(config, history=history))

    context.rejected.add(30)

    assert context.unsound == {10, 20, 30}


def test_quiet_users_hear_what_goes_wrong_but_no_progress(config: WorkerConfig) -> None:
    told: list[dict[str, object]] = []
    context = context_of(config, told)

    context.notify("the disk is full")
    context.inform("the page was written")

    assert told == [
        to_message(Notice("the disk is full")),
        to_message(Notice("the page was written", is_progress=True)),
    ]


def test_fault_stands_in_the_journal_before_it_strikes(
    config: WorkerConfig, journal: Journal
) -> None:
    faults = ("raise worker=3 step=7 site=vote attempt=2", "kill worker=4 step=7 site=vote")
    options = dataclasses.replace(config.options, faults=faults)
    injector = injector_of(dataclasses.replace(config, options=options), journal)
    injector.visit(7, Site.VOTE)

    with pytest.raises(InjectedFault):
        injector.visit(7, Site.VOTE)

    (record,) = read_journal(config.options.run_dir / "journal.jsonl")
    named = {name: record[name] for name in ("event", "worker", "step", "site", "attempt", "kind")}
    assert named == {
        "event": "fault", "worker": 3, "step": 7, "site": "vote", "attempt": 2, "kind": "raise",
    }  # fmt: skip


@pytest.mark.parametrize("wanted", [1, 3])
def test_script_asked_for_its_model_trains_nothing_and_ends_at_the_wanted_training(
    wanted: int,
) -> None:
    """One that catches the refusal and goes on is refused again; the next one is asked anew."""
    with contextlib.suppress(KeyError), training_refused(wanted) as refusal:
        for number in range(1, wanted):
            assert is_refused(number, str)
        assert refusal.first_inputs is None
        for number in (wanted, wanted + 1):
            with pytest.raises(TrainingRefused, match="only asked for its model"):
                is_refused(number, str)
        raise KeyError("a mistake of the script")

    assert refusal.first_inputs is not None
    assert (refusal.model, refusal.first_inputs()) == (wanted, "")
    assert not is_refused("model", str)
    with training_refused(wanted) as another:
        assert another.first_inputs is None
    assert not issubclass(TrainingRefused, Exception)  # a script that catches all lets it pass
