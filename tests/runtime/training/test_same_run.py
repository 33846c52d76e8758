"""A run goes on with the model and the samples that it was begun with; what differs is named."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from configs import worker_config
from fake_communicator import FakeCommunicator, run_world
from simulation import data

from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.tensor import TensorSpec
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.options.job_options import RateScaling
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.training.consistency import check_same_run, check_same_work, model_difference
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest, describe_job

NUMERICS = Numerics.here(threads=1)
JOB = {"global_batch": 9, "epochs": 2}
ALIVE = tuple(map(WorkerId, (4, 6, 7)))


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


def job(**changes: Any) -> TrainingJob:
    wishes: dict[str, Any] = {"data": data(), "validation": None, **JOB, **changes}
    request = TrainingRequest(**wishes)
    return describe_job(request, worker_config(microbatches=2, seed=3), NUMERICS)


def compared(jobs: Sequence[TrainingJob]) -> list[str | None]:
    """Return what each worker says when they compare their jobs; worker 5 has died before."""

    def program(communicator: FakeCommunicator) -> str:
        me, world = ALIVE[communicator.rank], World(2, ALIVE, len(ALIVE))
        membership = Membership(me, world, communicator, clock=lambda: 0.0)
        try:
            check_same_work(membership, jobs[communicator.rank])
        except ProgramError as error:
            return str(error)
        finally:
            communicator.leave()
        return "the same"

    return run_world(len(jobs), program)


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "the same"),
        ({"epochs": 3}, "the number of epochs of worker 7 is 3, and that of worker 4 is 2: every"),
        ({"is_shuffled": False}, "the shuffle of worker 7 is 0, and that of worker 4 is None: "),
        ({"data": data(22)}, "the samples of worker 7 is 22, and that of worker 4 is 23: every"),
        (
            {"validation": data(11)},
            f"validation data of worker 7 is {data(11).fingerprint()}, and that of worker 4 is "
            "None: every worker runs the whole script, so all must see the same; seed every",
        ),
    ],
    ids=["same", "epochs", "only there", "samples", "validation"],
)
def test_all_workers_refuse_what_one_of_them_would_train_otherwise(
    changes: dict[str, Any], told: str
) -> None:
    (first, *others) = compared([job(), job(), job(**changes)])

    assert first is not None
    assert told in first
    assert others == [first] * 2


def saved(found: TrainingJob, **changes: object) -> Manifest:
    """Return a manifest that a job has saved, with some changes of its cursor."""
    cursor = {**found.save_terms.fields, **changes}
    known = {name: value for name, value in cursor.items() if value is not None}
    return Manifest("r", 1, 10, known, {}, (), ())


def refusal(before: Manifest, now: TrainingJob) -> str:
    context: Any = SimpleNamespace(run_dir="/run")
    with pytest.raises(UsageError) as refused:
        check_same_run(context, now, [], before)
    return str(refused.value)


SCALED = {"scaling": RateScaling("sqrt", 4)}


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
    before: Manifest, now: TrainingJob, told: str
) -> None:
    said = refusal(before, now)

    assert said.startswith("the run in /run was begun with")
    assert told in said
    assert said.endswith("begin a new run with --fresh, or choose another --run-dir")


def test_samples_that_cannot_be_compared_are_taken() -> None:
    context: Any = SimpleNamespace(run_dir="/run")

    check_same_run(context, job(), [], saved(job(), data=None))
    check_same_run(context, job(), [], saved(job()))


def test_run_of_an_older_version_does_not_tell_its_first_epoch() -> None:
    context: Any = SimpleNamespace(run_dir="/run")

    check_same_run(context, job(), [], saved(job(first_epoch=2), **{"first epoch": None}))
