"""The trainings of a script, one after the other: where each begins, and what ends them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from configs import journal_of, without_faults, worker_config
from local_communicator import LocalCommunicator
from rounds_callback_host import RoundsCallbackHost
from simulation import STEPS, SimulatedAgent, TinyReplica, data

from holdfast.recovery.event import WorkerCompleted, WorkerStopped
from holdfast.recovery.reduction import FloatVector
from holdfast.recovery.world import OneWorld
from holdfast.runtime.errors import ExitCode, NoMoreTraining, ProgramError, StopRequested
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import to_message
from holdfast.runtime.system.worker_status import (
    Phase,
    RequestFlag,
    TrainingBegun,
    TrainingFailed,
)
from holdfast.runtime.training import stages as stages_module
from holdfast.runtime.training.progress import RepairCount
from holdfast.runtime.training.stages import StageEnd, Stages, is_first, stages_of_script
from holdfast.runtime.training.training_job import Stage, TrainingJob, TrainingRequest
from holdfast.runtime.worker import context as contexts
from holdfast.runtime.worker.context import WorkerContext

REQUEST = TrainingRequest(data(), data(11), global_batch=9, epochs=2, save_every="1h")
FIRST, LATER = Stage(), Stage(2, 10)


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_current", None)
    monkeypatch.setattr(contexts, "trainings", contexts.Trainings())
    monkeypatch.setattr(stages_module, "_stages", None)
    monkeypatch.setattr("holdfast.checkpoint.filesystem.os.fsync", lambda fd: None)


class Script:
    """A script that trains alone in a run directory, and what its worker tells."""

    def __init__(self, run_dir: Path, generation: int = 1) -> None:
        config = worker_config(run_dir=run_dir, generation=generation, microbatches=2)
        directory = RunDirectory(run_dir)
        if directory.load_record() is None:  # nothing is saved where the run is not
            directory.create_record(config.record)
        worlds = OneWorld(generation, config.workers)
        self._agent = SimulatedAgent(run_dir, config.record.run_id, generation, worlds)
        self.page, self._journal = self._agent.page(), journal_of(config)
        self.told: list[dict[str, object]] = []
        injector = without_faults(config)
        self.context = WorkerContext(
            config,
            LocalCommunicator(),
            self._journal,
            self.page,
            injector,
            self._hear,
            partial(self._agent.answer, ""),
        )
        self.stages = Stages(self.context)

    def train(self, replica: Any = None, request: TrainingRequest = REQUEST) -> StageEnd:
        return self.stages.train(request, lambda job, context: replica or TinyReplica())

    def heard(self, kind: type) -> list[dict[str, object]]:
        return [report for report in self.told if report["kind"] == kind.__name__]

    def close(self) -> None:
        self._journal.close()
        self._agent.lose(self.page)
        self._agent.close()

    def _hear(self, message: dict[str, object]) -> None:
        self.told.append(message)
        self._agent.hear("", message)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    script = Script(tmp_path)
    yield script
    script.close()


class Broken(TinyReplica):
    """A replica whose first update fails."""

    words = "no such column\nand more words"

    def apply(self, total: FloatVector, samples: int) -> None:
        raise ValueError(self.words)


def test_training_begins_at_the_step_at_which_the_one_before_has_ended(script: Script) -> None:
    first, second = script.train(), script.train()

    assert [first.cursor.step, second.cursor.step] == [STEPS, 2 * STEPS]
    assert script.stages.stage == Stage(3, 2 * STEPS)
    assert [told["number"] for told in script.heard(TrainingBegun)] == [1, 2]
    assert [told["step"] for told in script.heard(WorkerCompleted)] == [STEPS, 2 * STEPS]
    assert script.page.phase is Phase.CONCLUDING


def test_script_that_is_run_again_gets_its_trainings_without_an_update(
    script: Script, tmp_path: Path
) -> None:
    ends = [script.train(), script.train()]

    again = Script(tmp_path, generation=2)
    restored = [again.train(Broken()), again.train(Broken())]
    again.close()

    assert [end.sha256 for end in restored] == [end.sha256 for end in ends]
    assert [end.metrics for end in restored] == [end.metrics for end in ends]


def test_end_of_a_training_has_the_metrics_of_its_last_epoch(script: Script) -> None:
    end = script.train()
    (told,) = script.heard(WorkerCompleted)

    assert (set(end.metrics), set(end.validation)) == ({"loss"}, {"loss"})
    assert end.metrics != end.validation
    assert (told["metrics"], told["validation"]) == (end.metrics, end.validation)
    assert (told["sha256"], told["is_first"], end.random) == (end.sha256, True, None)


def fail(_: TrainingJob, context: WorkerContext) -> NoReturn:
    raise ValueError("no such layer")


def test_training_that_no_worker_can_begin_is_the_scripts_own_trouble(
    script: Script, tmp_path: Path
) -> None:
    first = script.train()
    with pytest.raises(ValueError, match="no such layer"):
        script.stages.train(REQUEST, fail)
    phase = script.page.phase
    last = script.train()

    again = Script(tmp_path, generation=2)
    again.train(Broken())
    with pytest.raises(ValueError, match="no such layer"):
        again.stages.train(REQUEST, fail)
    restored = again.train(Broken())
    again.close()

    assert (first.cursor.step, last.cursor.step) == (STEPS, 2 * STEPS)
    assert (phase, contexts.trainings.failure) == (Phase.CONCLUDING, None)
    assert [told["number"] for told in script.heard(TrainingBegun)] == [1, 2, 3]
    assert [told["step"] for told in script.heard(WorkerCompleted)] == [STEPS, 2 * STEPS]
    assert restored.sha256 == last.sha256


class Bad(TinyReplica):
    """A replica that cannot compute its fifth update."""

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > 8:  # two microbatches a step
            raise ValueError("no such sample")
        super().contribute(batch, out)


@pytest.mark.parametrize("save_every", ["1h", 1], ids=["saved at the end", "saved before"])
def test_error_of_the_scripts_code_in_a_step_ends_the_training_for_the_last_worker(
    script: Script, tmp_path: Path, save_every: int | str
) -> None:
    request = dataclasses.replace(REQUEST, save_every=save_every)
    failed = script.train(Bad(), request)
    last = script.train()

    again = Script(tmp_path, generation=2)
    once_more = again.train(Raising(), request)
    restored = again.train(Broken())
    again.close()

    assert (str(failed.error), failed.cursor.step) == ("no such sample", 4)
    assert (str(once_more.error), once_more.sha256) == ("at once", failed.sha256)
    assert (restored.sha256, last.cursor.step) == (last.sha256, 4 + STEPS)
    assert contexts.trainings.failure is None


class Raising(TinyReplica):
    """A replica that cannot compute anything."""

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        raise ValueError("at once")


def pruned(replica: Any) -> RoundsCallbackHost:
    return RoundsCallbackHost(replica, fails_in=4)


def test_error_of_callbacks_ends_a_training_and_is_raised_again_if_the_script_went_on(
    script: Script, tmp_path: Path
) -> None:
    def train_all(script: Script, replica: type[TinyReplica]) -> list[StageEnd]:
        first = script.stages.train(REQUEST, lambda *_: replica(), pruned)
        return [first, script.train(replica())]

    ends = train_all(script, TinyReplica)

    again = Script(tmp_path, generation=2)
    restored = train_all(again, Broken)
    again.close()

    for end in (ends[0], restored[0]):
        assert (str(end.error), 0 < end.cursor.step < STEPS) == ("no good trial", True)
    assert [end.sha256 for end in restored] == [end.sha256 for end in ends]
    assert script.heard(WorkerCompleted)[0]["error"] == "ValueError: no good trial"
    assert ends[1].cursor.step == ends[0].cursor.step + STEPS
    assert ends[1].error is None


def test_training_that_failed_is_followed_by_no_other(script: Script) -> None:
    with pytest.raises(ValueError, match="no such column") as failed:
        script.train(Broken())
    assert script.page.phase is Phase.FAILED
    words = "training 1 .* to its end, because of ValueError: no such column: no other one can"
    with pytest.raises(NoMoreTraining, match=words) as refused:
        script.train()

    assert refused.value.__cause__ is contexts.trainings.failure is failed.value
    (told,) = script.heard(TrainingFailed)
    assert told["error"] == "ValueError: no such column"
    assert len(script.heard(TrainingBegun)) == 1


def test_error_that_no_message_holds_is_cut(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Broken, "words", "begin" + "x" * 20_000_000)
    with pytest.raises(ValueError, match="begin"):
        script.train(Broken())

    (told,) = script.heard(TrainingFailed)
    assert told["error"].startswith("ValueError: begin")
    assert len(told["error"]) < 100_000


def test_training_that_was_stopped_ends_every_later_one_in_the_same_way(script: Script) -> None:
    script.page.ask(RequestFlag.STOP)

    with pytest.raises(StopRequested, match=r"stopped at step 1 of 6 with a checkpoint") as stopped:
        script.train()
    with pytest.raises(StopRequested) as again:
        script.train()

    assert again.value is stopped.value
    assert [told["step"] for told in script.heard(WorkerStopped)] == [1]
    assert script.heard(TrainingFailed) == []
    assert script.page.phase is not Phase.FAILED


def test_run_that_is_beyond_the_scripts_wish_says_so(script: Script, tmp_path: Path) -> None:
    script.train()

    shorter = TrainingRequest(data(), data(11), global_batch=9, epochs=1)
    again = Script(tmp_path, generation=2)
    end = again.train(Broken(), shorter)
    again.close()

    assert end.cursor.step == STEPS
    (notice,) = again.heard(Notice)
    assert "the run is at step 6, and the script asks for 3 steps" in str(notice["text"])


def test_notices_of_a_replica_are_shown_before_it_trains(script: Script) -> None:
    class Talking(Broken):
        notices = ("the seed is ignored",)

    with pytest.raises(ValueError, match="no such column"):
        script.train(Talking())

    assert script.heard(Notice) == [to_message(Notice("the seed is ignored"))]


def test_metric_that_no_epoch_has_is_refused_before_the_first_update(script: Script) -> None:
    wish = TrainingRequest(data(), None, global_batch=9, epochs=2, keep_best=("val_loss", "min"))

    with pytest.raises(ProgramError, match="keep_best asks for 'val_loss'"):
        script.train(Broken(), wish)


def test_script_has_one_row_of_trainings_in_the_surroundings_of_its_worker(script: Script) -> None:
    contexts.install(script.context)
    assert is_first()

    stages = stages_of_script()

    assert stages.context is script.context
    assert stages_of_script() is stages
    assert is_first() is stages.is_first is True


@pytest.mark.parametrize(
    ("saved", "is_followed"),
    [(LATER, True), (Stage(2, 11), False), (Stage(3, 10), True), (FIRST, False)],
    ids=["next", "next, elsewhere", "next but one, after one without a step", "itself"],
)
def test_only_a_later_training_tells_where_this_one_has_ended(
    *, saved: Stage, is_followed: bool
) -> None:
    assert FIRST.is_followed_at(10, saved.into({})) == is_followed


def test_each_training_shuffles_in_a_way_of_its_own_wherever_it_begins() -> None:
    seeds = [Stage(number, 10 * number).seed(7) for number in (1, 2, 3)]

    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert Stage(2, 99).seed(7) == seeds[1]


@pytest.mark.parametrize(
    ("workers", "most"), [(1, 32), (16, 32), (17, 34)], ids=["one", "small", "large"]
)
def test_world_is_given_up_after_too_many_repairs_without_a_step(workers: int, most: int) -> None:
    repairs = RepairCount(worker_config(workers=range(workers)))

    repairs.attempts = most
    assert not repairs.is_hopeless
    repairs.attempts = most + 1
    assert repairs.is_hopeless
    assert f"a member of the world died, and {most} repairs in a row have not" in str(
        repairs.lost()
    )
    assert repairs.lost().exit_code is ExitCode.RECOVERY_IMPOSSIBLE
