"""A PyDataset hears of epochs in the order of plain ``fit``, and so do those that resume."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from local_communicator import LocalCommunicator

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.keras.fit_call import FitCall, leave_pipelines, supply_of

pytestmark = pytest.mark.tensorflow

SEED, BATCHES, VALIDATED = 7, 3, 2
CALLS: list[dict[str, Any]] = [
    {"epochs": 3},
    {"epochs": 3, "validation_data": True},
    {"epochs": 4, "validation_data": True, "validation_freq": 2},
    {"epochs": 3, "validation_data": True, "validation_steps": 1},
    {"epochs": 3, "steps_per_epoch": BATCHES},
]
CUT = {"epochs": 3, "steps_per_epoch": 2}
"""Plain ``fit`` reads ahead beyond the end of such an epoch, as far as chance lets it."""


def datasets(log: list[str], *, has_own_noise: bool = False) -> tuple[Any, Any]:
    """Return a dataset to train on and one to validate with, which shuffle by themselves."""

    class Shuffled(keras.utils.PyDataset):
        def __init__(self, name: str, batches: int) -> None:
            super().__init__()
            self.name, self.batches = name, batches
            self.random = np.random.default_rng(4)
            self.order = np.arange(4 * batches)

        def __len__(self) -> int:
            return self.batches

        def __getitem__(self, index: int) -> Any:
            log.append(f"{self.name}{index}")
            x = self.order[4 * index : 4 * index + 4, None].astype("float32") / 10
            return (x + self.random.normal() if has_own_noise else x), x * x

        def on_epoch_begin(self) -> None:
            log.append(f"{self.name} begins")

        def on_epoch_end(self) -> None:
            self.random.shuffle(self.order)
            log.append(f"{self.name} ends")

    return Shuffled("training", BATCHES), Shuffled("validation", VALIDATED)


def told(log: list[str], name: str) -> list[str]:
    return [line.removeprefix(name) for line in log if line.startswith(name)]


def only_hooks(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(" ")]


def in_plain_keras(asked: dict[str, Any]) -> tuple[list[str], Any]:
    """Return the log of plain ``fit``, and the orders that it leaves."""
    log: list[str] = []
    training, validation = datasets(log)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    given = asked | ({"validation_data": validation} if "validation_data" in asked else {})
    model.fit(training, shuffle=False, verbose=0, **given)
    return log, (training.order.tolist(), validation.order.tolist())


class Feeds:
    """The feeds of one launch of ours."""

    def __init__(self, asked: dict[str, Any], *, has_own_noise: bool = False) -> None:
        self.log: list[str] = []
        self.datasets = datasets(self.log, has_own_noise=has_own_noise)
        validates = "validation_data" in asked
        given = asked | ({"validation_data": self.datasets[1]} if validates else {})
        self.call = FitCall(self.datasets[0], shuffle=False, **given)
        self.data = supply_of(self.call, SEED, lambda text: None)
        self.digests: list[int] = []

    def run(self, first: int = 0, stop: int = 1000) -> Feeds:
        """Read the batches of the steps ``first <= step < stop``, and validate between."""
        step = validated = 0
        for epoch, steps in enumerate(self.epochs(), 1):
            for _ in range(steps):
                if first <= step < stop:
                    self.read(self.data.training.train_batch, step)
                step += 1
            if self.data.validation is not None and epoch % self.call.validation_freq == 0:
                for number in range(self.data.validation.steps):
                    if first < step <= stop:
                        self.read(self.data.validation.validation_batch, (validated, number))
                validated += 1
        self.left = step, validated
        return self

    def epochs(self) -> list[int]:
        """Return the steps of each epoch, which ends with its pass at the latest."""
        found, rest = [], BATCHES
        for _ in range(self.call.epochs):
            found.append(min(self.data.training.steps, rest))
            rest = rest - found[-1] or BATCHES
        return found

    def read(self, fetch: Any, position: Any) -> None:
        self.digests.append(fetch(position, LocalCommunicator()).digest)

    def leave(self) -> Any:
        leave_pipelines(self.data, *self.left)
        return tuple(dataset.order.tolist() for dataset in self.datasets)


@pytest.mark.parametrize("asked", CALLS)
def test_hooks_and_batches_come_in_the_order_of_plain_fit(asked: dict[str, Any]) -> None:
    log, order = in_plain_keras(asked)
    feeds = Feeds(asked).run()

    assert feeds.leave() == order
    for name in ("training", "validation"):
        wanted, found = told(log, name), told(feeds.log, name)
        assert only_hooks(found) == only_hooks(wanted)
        begins = [lines.index(" begins") if lines else 0 for lines in (wanted, found)]
        if "validation_steps" not in asked:  # plain fit reads one batch further, or not
            assert found[begins[1] :] == wanted[begins[0] :]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_an_epoch_of_some_steps_is_told_as_in_plain_fit() -> None:
    log, order = in_plain_keras(CUT)
    feeds = Feeds(CUT).run()

    assert feeds.leave() == order
    assert only_hooks(feeds.log) == only_hooks(log)
    begun = feeds.log.index("training begins")
    assert [line.removeprefix("training") for line in feeds.log[begun : begun + 7]] == [
        *(" begins", "0", "1", " ends"),
        *(" begins", "2", " ends"),
    ]


@pytest.mark.parametrize("has_own_noise", [False, True])
@pytest.mark.parametrize("asked", [*CALLS[:3], CUT])
def test_resume_at_any_batch_reads_what_the_uninterrupted_run_reads(
    asked: dict[str, Any], *, has_own_noise: bool
) -> None:
    whole = Feeds(asked, has_own_noise=has_own_noise).run()
    steps = whole.left[0]
    for begin in range(1, steps):
        before = Feeds(asked, has_own_noise=has_own_noise).run(0, begin)
        resumed = Feeds(asked, has_own_noise=has_own_noise).run(begin)
        assert before.digests + resumed.digests == whole.digests
        assert resumed.leave() == Feeds(asked, has_own_noise=has_own_noise).run().leave()


def test_a_fit_that_is_over_leaves_the_datasets_as_the_one_that_has_read() -> None:
    for asked in (*CALLS, CUT):
        read, restored = Feeds(asked).run(), Feeds(asked)
        restored.left = read.left
        assert restored.leave() == read.leave()
        for name in ("training", "validation"):
            assert only_hooks(told(restored.log, name)) == only_hooks(told(read.log, name))


def test_one_dataset_for_both_uses_is_refused_if_epochs_change_it() -> None:
    class Plain(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            return np.zeros((4, 1), np.float32), np.zeros((4, 1), np.float32)

    plain, shuffled = Plain(), datasets([])[0]
    supply_of(FitCall(plain, validation_data=plain), SEED, lambda text: None)
    with pytest.raises(ProgramError, match=r"one Shuffled as x and as validation_data.*make two"):
        supply_of(FitCall(shuffled, validation_data=shuffled), SEED, lambda text: None)
