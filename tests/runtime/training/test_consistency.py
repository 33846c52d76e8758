"""All do the same: workers of a world, and a run that goes on; what differs is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from configs import gives_nothing, without_faults, worker_config
from fake_communicator import FakeCommunicator, run_world
from local_communicator import LocalCommunicator
from simulation import TinyReplica, data

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.tensor import TensorSpec, specs_of
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.exchange.membership import Communicator, Membership
from holdfast.runtime.model.step_facts import GraphFacts, StepFacts
from holdfast.runtime.run.journal import Journal, read_journal
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.training.callback_host import CALLBACKS, CallbackHost
from holdfast.runtime.training.consistency import (
    Mine,
    StepRecord,
    check_resumed,
    check_same_record,
    compare,
    model_difference,
)
from holdfast.runtime.training.job_state import TrainingState
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest, describe_job
from holdfast.runtime.worker.context import WorkerContext

LAUNCHED = (4, 5, 6, 7)
ALIVE = tuple(map(WorkerId, (4, 6, 7)))
NUMERICS = replace(Numerics.here(threads=1), instruction_set="AVX2")
OTHER_NUMERICS = replace(NUMERICS, instruction_set="AVX512_CORE", threads=2)
DIFFERENCES = "threads is 2, but {0} 1; instruction set is AVX512_CORE, but {0} AVX2"
JOB = {"global_batch": 9, "epochs": 2}
START = Cursor.start(1)
MENDED = "; every worker runs the whole script, so all must build the same step: seed every random "
SCALED = {"batch_factor": 4}
RECORD = StepRecord("keras", "script", "job", "operations", {"the loss": "a", "the step": "b"})
OTHER = {"the loss": "c", "the step": "b"}


def job(numerics: Numerics = NUMERICS, **changes: Any) -> TrainingJob:
    wishes: dict[str, Any] = {"data": data(), "validation": None, **JOB, **changes}
    request = TrainingRequest(**wishes)
    return describe_job(request, worker_config(microbatches=2, seed=3, scale_rate="sqrt"), numerics)


@dataclass
class Worker:
    """What one worker has built."""

    job: TrainingJob = field(default_factory=job)
    state: TrainingState = field(
        default_factory=lambda: TrainingState(TinyReplica(), CallbackHost())
    )


class Peers:
    """Workers that compare what they have, and what they say."""

    def __init__(self, folder: Path, *, is_strict: bool = False) -> None:
        self._journal = Journal(folder / "journal.jsonl", run_id="run", source="test")
        self._is_strict = is_strict
        self._path = folder / "journal.jsonl"
        self.said: list[str] = []

    def compare(self, *workers: Worker, weights: bool = False) -> str:
        """Return how the comparison ends for all alike; worker 5 has died before."""

        def program(communicator: FakeCommunicator) -> str:
            rank = communicator.rank
            mine = self.mine(workers[rank], communicator)
            world = World(2, ALIVE, len(ALIVE))
            membership = Membership(ALIVE[rank], world, communicator, clock=lambda: 0.0)
            try:
                compare(membership, mine, weights=weights)
            except (ProgramError, UsageError) as error:
                return str(error)
            finally:
                communicator.leave()
            return "the same"

        (said,) = {str(found) for found in run_world(len(workers), program)}
        return said

    def resume(self, saved: Manifest, now: TrainingJob) -> str:
        """Return how a run goes on from a checkpoint."""
        try:
            check_resumed(self.mine(Worker(now), LocalCommunicator()), saved, is_first=True)
        except UsageError as error:
            return str(error)
        return "the same"

    def mine(self, worker: Worker, communicator: Communicator) -> Mine:
        nothing: Any = None
        me, run_dir = ALIVE[communicator.rank], Path("/run")
        config = worker_config(me, LAUNCHED, run_dir=run_dir, strict=self._is_strict)
        hear = lambda report: self.said.append(str(report["text"]))  # noqa: E731
        faults = without_faults(config)
        context = WorkerContext(
            config, communicator, self._journal, nothing, faults, hear, gives_nothing
        )
        return Mine(context, worker.job, worker.state, START)

    def recorded(self) -> list[list[str]]:
        records = read_journal(self._path)
        return [found["differences"] for found in records if found["event"] == "numerics_differ"]

    def close(self) -> None:
        self._journal.close()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    found = Peers(tmp_path)
    yield found
    found.close()


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Peers]:
    found = Peers(tmp_path, is_strict=True)
    yield found
    found.close()


ONE, ODD = Worker(), Worker(job(OTHER_NUMERICS))


@pytest.mark.usefixtures("one_core")
def test_equal_workers_say_nothing(strict: Peers) -> None:
    assert strict.compare(ONE, ONE, ONE) == "the same"
    assert (strict.said, strict.recorded()) == ([], [])


@pytest.mark.usefixtures("one_core")
def test_worker_with_other_numerics_is_named_beside_the_first_one(peers: Peers) -> None:
    assert peers.compare(ONE, ONE, ODD) == "the same"

    differences = DIFFERENCES.format("worker 4 has")
    assert set(peers.said) == {
        f"worker 7 has other numerics than worker 4: {differences}: its bytes may differ"
    }
    assert differences.split("; ") in peers.recorded()


@pytest.mark.usefixtures("one_core")
def test_strict_job_is_refused_by_all_workers_alike(strict: Peers) -> None:
    said = strict.compare(ONE, ODD, ONE)

    assert said.startswith("worker 6 has other numerics than worker 4: threads is 2, but")
    assert said.endswith("; make them the same, or run without --strict")
    assert strict.said == []


def test_run_that_goes_on_elsewhere_is_told_what_changed(peers: Peers) -> None:
    assert peers.resume(saved(job()), job(OTHER_NUMERICS)) == "the same"

    differences = DIFFERENCES.format("the checkpoint was made with")
    assert peers.said == [
        f"the numerics of the run in /run have changed: {differences}: its bytes may differ"
    ]
    assert peers.recorded() == [differences.split("; ")]


def test_strict_run_does_not_go_on_elsewhere(strict: Peers) -> None:
    ending = strict.resume(saved(job()), job(OTHER_NUMERICS))

    assert ending.startswith("the numerics of the run in /run have changed: threads is 2, but the")
    assert ending.endswith("; make them the same, or run without --strict")


def _spec(name: str, *shape: int, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, dtype, shape)


KERNEL = _spec("weights/dense_2/kernel", 16, 4)


BIAS = _spec("weights/dense_2/bias", 4)


@pytest.mark.parametrize(
    ("saved", "mine", "difference"),
    [
        ([KERNEL, BIAS], [BIAS, KERNEL], None),
        (
            [BIAS, KERNEL, _spec("optimizer/adam/kernel_momentum", 16, 4)],
            [
                _spec("weights/dense_2/bias", 8),
                _spec("weights/dense_2/kernel", 16, 8),
                _spec("optimizer/adam/kernel_momentum", 16, 8),
            ],
            "model: the checkpoint has dense_2/kernel (16, 4), dense_2/bias (4,); "
            "the script has dense_2/kernel (16, 8), dense_2/bias (8,)",
        ),
        (
            [KERNEL, BIAS],
            [KERNEL],
            "model: the checkpoint has dense_2/bias (4,), which the script does not have",
        ),
        (
            [KERNEL],
            [KERNEL, _spec("optimizer/sgd/momentum", 2)],
            "optimizer: the script has sgd/momentum (2,), which the checkpoint does not have",
        ),
        (
            [_spec("cursor/sums", 1)],
            [_spec("cursor/sums", 2)],
            "metrics: the checkpoint has sums (1,); the script has sums (2,)",
        ),
        (
            [BIAS],
            [_spec(BIAS.name, 4, dtype="bfloat16")],
            "model: the checkpoint has dense_2/bias (4,) float32; "
            "the script has dense_2/bias (4,) bfloat16",
        ),
        (
            [_spec(f"weights/dense_{i}/kernel", 2, 2) for i in range(5)],
            [],
            "model: the checkpoint has dense_0/kernel (2, 2), dense_1/kernel (2, 2), "
            "dense_2/kernel (2, 2) and 2 more, which the script does not have",
        ),
        (
            [_spec("plain", 1)],
            [_spec("plain", 2)],
            "state: the checkpoint has plain (1,); the script has plain (2,)",
        ),
    ],
)
def test_difference_is_told_by_its_layers(
    saved: list[TensorSpec], mine: list[TensorSpec], difference: str | None
) -> None:
    assert model_difference(saved, mine) == difference


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"epochs": 3}, "the number of epochs of worker 7 is 3, and that of worker 4 is 2: every"),
        ({"is_shuffled": False}, "the shuffle of worker 7 is 0, and that of worker 4 is None: "),
        ({"data": data(22)}, "the samples of worker 7 is 22, and that of worker 4 is 23: every"),
        (
            {"validation": data(11)},
            f"validation data of worker 7 is {data(11).fingerprint()}, and that of worker 4 is "
            "None: every worker runs the whole script, so all must see the same; seed every",
        ),
    ],
    ids=["epochs", "only there", "samples", "validation"],
)
def test_all_workers_refuse_what_one_of_them_would_train_otherwise(
    peers: Peers, changes: dict[str, Any], told: str
) -> None:
    assert told in peers.compare(ONE, ONE, Worker(job(**changes)))


def saved(found: TrainingJob, **changes: object) -> Manifest:
    """Return a manifest that a job has saved, with some changes of its cursor."""
    cursor = {**found.save_terms.fields, **changes}
    known = {name: value for name, value in cursor.items() if value is not None}
    tensors: Any = [SimpleNamespace(spec=s) for s in specs_of(Worker().state.tensors(START))]
    return Manifest("r", 1, 10, known, to_plain(found.numerics), (), tensors)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (saved(job(), seed=4), job(), "was begun with seed 4, and the script has seed 3: go back"),
        (
            saved(job(**SCALED)),
            job(),
            "with learning rate sqrt x2 over 6 steps, and the script has no learning rate: go",
        ),
        (saved(job()), job(**SCALED), "with no learning rate, and the script has learning rate sq"),
        (
            saved(job(steps_per_epoch=2)),
            job(),
            "with steps per epoch 2, and the script has no steps per epoch: go back to that, begin",
        ),
        (
            saved(job(first_epoch=2)),
            job(),
            "with initial_epoch=2, and the script has initial_epoch=0: go back to that, begin",
        ),
        (saved(job(), data="ab"), job(), "was begun with other samples (digest ab, now "),
    ],
    ids=["seed", "rate no more", "rate now", "cut no more", "epochs", "samples"],
)
def test_run_that_was_begun_otherwise_is_refused_with_both_values(
    peers: Peers, before: Manifest, now: TrainingJob, told: str
) -> None:
    said = peers.resume(before, now)

    assert said.startswith("the run in /run was begun with")
    assert told in said
    assert said.endswith("begin a new run with --fresh, or choose another --run-dir")


@pytest.mark.parametrize("change", [{"microbatches": 7}, {"data": None}, {"first epoch": None}, {}])
def test_run_goes_on_with_other_microbatches_and_what_cannot_be_compared(
    peers: Peers, change: dict[str, Any]
) -> None:
    assert peers.resume(saved(job(), **change), job()) == "the same"


class StrikeResult(TinyReplica):
    """A replica that tells what its step is made of."""

    def __init__(self, **facts: Any) -> None:
        super().__init__()
        self.facts_told = {"whole": "a", "constants": {}, "read": {}, "settings": {}} | facts

    def facts(self) -> StepFacts:
        told = self.facts_told
        graphs = GraphFacts(told["whole"], "", told["constants"])
        return StepFacts(graphs, told["read"], lambda: told["settings"])


class Set(CallbackHost):
    """A callback host with settings."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings

    def settings(self) -> Mapping[str, str]:
        return self._settings


class Wider(TinyReplica):
    """A replica with weights of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = np.zeros(50, np.float32)


def built(settings: Mapping[str, str] | None = None, **facts: Any) -> Worker:
    host = CallbackHost() if settings is None else Set(settings)
    return Worker(state=TrainingState(StrikeResult(**facts), host))


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        (built(), built(), "the same"),
        (built(settings={"patience of X": "3"}), built(), "the same"),
        (
            built({"patience of X": "3", "mode of X": "'min'"}),
            built({"patience of X": "4"}),
            "they differ in patience of X: 3 on worker 4, 4 on worker 7",
        ),
        (
            built(whole="a", constants={"a constant of the loss (x)": "2.5", "b": "1"}),
            built(whole="b", constants={"a constant of the loss (x)": "3", "b": "2"}),
            "they differ in a constant of the loss (x): 2.5 on worker 4, 3 on worker 7",
        ),
        (
            built(whole="a", constants={"x": "1", "y": "digest 1"}),
            built(whole="b", constants={"x": "1", "y": "digest 2"}),
            "they differ in y",
        ),
        (
            built(read={"the variable 'w' that the step reads": "1.0"}),
            built(read={"the variable 'w' that the step reads": "0.10000000149011612"}),
            "differ in the variable 'w' that the step reads: 1 on worker 4, 0.1 on worker 7",
        ),
        (built(whole="a"), built(whole="b"), "they differ in the operations of the step"),
        (
            built(whole="a", settings={"units of Dense 'd'": "12"}, constants={"size": "12"}),
            built(whole="b", settings={"units of Dense 'd'": "57"}, constants={"size": "57"}),
            "they differ in units of Dense 'd': 12 on worker 4, 57 on worker 7",
        ),
        (
            Worker(),
            Worker(state=TrainingState(Wider(), CallbackHost())),
            "in the shape of weights: (37,) float32 on worker 4, (50,) float32 on worker 7",
        ),
    ],
)
def test_what_differs_is_named(peers: Peers, first: Worker, last: Worker, told: str) -> None:
    said = peers.compare(first, first, last)

    if told == "the same":
        assert said == told
    else:
        assert said.startswith("workers 4 and 7 build different steps, ")
        assert f"{told}{MENDED}" in said


@pytest.mark.usefixtures("one_core")
def test_callbacks_that_one_worker_alone_has_are_named_with_both_lists(peers: Peers) -> None:
    all_have, one_has = (built({CALLBACKS: told}) for told in ("[CSVLogger]", "[CSVLogger, Mine]"))

    said = peers.compare(one_has, all_have, all_have)

    lists = "[CSVLogger, Mine] on worker 4, [CSVLogger] on worker 6"
    assert said.startswith(f"workers 4 and 6 differ in the callbacks of fit(): {lists}; give all")


@pytest.mark.usefixtures("one_core")
def test_weights_that_differ_at_the_beginning_are_named(peers: Peers) -> None:
    other = Worker(state=TrainingState(TinyReplica(), CallbackHost()))
    other.state.replica.state()["weights"][:] += np.float32(0.5)  # type: ignore[index]

    assert peers.compare(ONE, ONE, ONE, weights=True) == "the same"
    said = peers.compare(ONE, other, ONE, weights=True)
    assert said.startswith("workers 4 and 6 build different steps, they differ in the initial w")
    assert f"the initial weights of weights{MENDED}" in said


def heard(before: StepRecord, now: StepRecord, *, is_one_of_several: bool = False) -> list[str]:
    """Return what a user hears when a run goes on with another step."""
    lines: list[str] = []
    context: Any = SimpleNamespace(notify=lines.append)
    saved = {"step": to_plain(before)}
    check_same_record(context, now, saved, is_first=True, is_one_of_several=is_one_of_several)
    return lines


def test_launches_of_one_job_must_build_the_same_step() -> None:
    with pytest.raises(UsageError, match="a constant of the loss is another one now"):
        heard(RECORD, replace(RECORD, parts=OTHER))
    assert heard(RECORD, RECORD) == []


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"job": "another"}, 1),
        ({"job": ""}, 1),
        ({"script": "changed"}, 0),
        ({"made_by": "another Keras"}, 0),
        ({"operations": "others"}, 0),
    ],
)
def test_another_job_is_told_and_what_cannot_be_compared_is_taken(
    changes: dict[str, str], lines: int
) -> None:
    assert len(heard(RECORD, replace(RECORD, parts=OTHER, **changes))) == lines


RATE, MOMENTUM = "learning rate of SGD 'sgd'", "momentum of SGD 'sgd'"
ASKED = replace(RECORD, asked={RATE: "0.1", MOMENTUM: "0.9"}, begin="w")


@pytest.mark.parametrize("script", ["script", "changed"])
def test_what_a_start_asks_for_is_told_with_what_the_run_keeps(script: str) -> None:
    now = replace(ASKED, job="another", script=script, asked={RATE: "0.01", MOMENTUM: "0.5"})

    assert heard(ASKED, now) == [
        "the script asks for the learning rate of SGD 'sgd' of 0.01 now, and the run keeps 0.1, "
        "which it was begun with: to take 0.01, give fit() the callback "
        "keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.01); the momentum of SGD "
        "'sgd' was 0.9, and the run goes on with 0.5; --fresh begins a new run"
    ]
    following = now.going_on_from({"step": to_plain(ASKED)})
    assert following.asked == {RATE: "0.1", MOMENTUM: "0.5"}
    (line,) = heard(following, replace(now, job="a third"))
    assert "the run keeps 0.1" in line
    assert "momentum" not in line


def test_rate_that_a_callback_sets_is_the_one_of_the_run_from_then_on() -> None:
    new = {RATE: "0.01", MOMENTUM: "0.9"}
    advised = replace(ASKED, job="another", asked={**new, "LearningRateScheduler": "given"})

    assert heard(ASKED, advised) == []
    following = advised.going_on_from({"step": to_plain(ASKED)})
    assert heard(following, replace(ASKED, job="a third", asked=new)) == []


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (ASKED, replace(ASKED, job="another", begin="other weights")),
        (ASKED, replace(ASKED, asked={RATE: "0.01"})),
        (replace(ASKED, asked={}), replace(ASKED, job="another")),
    ],
    ids=["as before", "the same job: the script has loaded its own", "an older holdfast"],
)
def test_nothing_is_told_of_what_is_asked_for_as_before(
    before: StepRecord, now: StepRecord
) -> None:
    assert heard(before, now) == []


def test_schedule_is_a_constant_of_the_step_and_no_rate_that_is_kept() -> None:
    now = replace(ASKED, job="another", asked={RATE: "CosineDecay(initial_learning_rate=0.1)"})

    assert "the run goes on with CosineDecay(" in heard(ASKED, now)[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"asked": {RATE: "0.01"}}, f"the {RATE} is 0.01, and was 0.1"),
        ({"begin": "other"}, "it begins with other weights"),
    ],
)
@pytest.mark.parametrize("job", ["job", "another"])
def test_each_of_several_trainings_is_the_one_that_it_was(
    changes: dict[str, Any], words: str, job: str
) -> None:
    with pytest.raises(UsageError, match=words):
        heard(ASKED, replace(ASKED, job=job, **changes), is_one_of_several=True)
    assert heard(ASKED, replace(ASKED, job=job), is_one_of_several=True) == []
    heard(ASKED, replace(ASKED, job=job, script="changed", **changes), is_one_of_several=True)
