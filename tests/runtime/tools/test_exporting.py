"""Which format a target stands for, and which tensors a user's model takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from holdfast.checkpoint.reader import Restored, restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import Tensor
from holdfast.runtime.errors import UsageError
from holdfast.runtime.tools.exporting import (
    ExportFormat,
    ExportRequest,
    ModelSource,
    export_state,
    format_of,
    load_into,
)

STATE: dict[str, Tensor] = {
    "companion/mine": np.arange(2),
    "cursor/step": np.array(3),
    "optimizer/sgd/rate": np.array(0.5, np.float32),
    "weights/bias": np.arange(2, dtype=np.float32),
    "weights/moving": np.full(2, 7, np.float32),
}
NO_SCRIPT = ModelSource(Path("/nowhere/train.py"), "model")


@dataclass
class Variable:
    """What a load asks of a Keras variable."""

    path: str
    shape: tuple[int, ...] = (2,)
    dtype: str = "float32"
    value: Any = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def assign(self, value: Tensor) -> None:
        self.value = value


@dataclass
class Model:
    """What a load asks of a Keras model."""

    optimizer: Any = None
    trainable_variables: list[Variable] = field(default_factory=lambda: [Variable("bias")])
    non_trainable_variables: list[Variable] = field(default_factory=lambda: [Variable("moving")])

    def save_weights(self, path: Path) -> None:
        path.write_text(repr([variable.value.tolist() for variable in self.trainable_variables]))


def compiled() -> Model:
    return Model(SimpleNamespace(variables=[Variable("sgd/rate", ())]))


def restored(folder: Path, state: dict[str, Tensor] | None = None, **cursor: object) -> Restored:
    store = CheckpointStore(folder / "run")
    save(store, state or STATE, header=Header("r", 1, 3), cursor=cursor)
    return restore(store, 3)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("w.npz", ExportFormat.NPZ),
        ("w.weights.h5", ExportFormat.WEIGHTS),
        ("w.v2.keras", ExportFormat.KERAS),
        ("served", ExportFormat.SAVEDMODEL),
        (".hidden", ExportFormat.SAVEDMODEL),
    ],
)
def test_name_of_the_target_stands_for_its_format(name: str, kind: ExportFormat) -> None:
    assert format_of(Path("/out.npz") / name, None) is kind


@pytest.mark.parametrize("wanted", [kind.value for kind in ExportFormat])
def test_format_that_is_asked_for_counts_before_the_name(wanted: str) -> None:
    assert format_of(Path("w.keras"), wanted).value == wanted


@pytest.mark.parametrize("name", ["w.h5", "w.txt", "w.NPZ", "model.v2"])
def test_name_of_no_known_format_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        format_of(Path(name), None)

    assert str(caught.value) == (
        f"{name} has a name of no known format; end it in .npz, .weights.h5, .keras or, "
        "for a SavedModel's directory, in no suffix, or give --format"
    )


@pytest.mark.parametrize(
    ("name", "kind", "complaint"),
    [
        ("w.npy", ExportFormat.NPZ, "w.npy must end in .npz; choose another --to"),
        ("w.h5", ExportFormat.WEIGHTS, "w.h5 must end in .weights.h5"),
        ("w.npz", ExportFormat.KERAS, "w.npz must end in .keras"),
    ],
)
def test_target_that_its_format_cannot_have_is_refused(
    name: str, kind: ExportFormat, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        ExportRequest(Path(name), kind, NO_SCRIPT, is_forced=False)


def test_saved_model_may_have_any_name() -> None:
    request = ExportRequest(Path("model.v2"), ExportFormat.SAVEDMODEL, NO_SCRIPT, is_forced=False)

    assert request.target == Path("model.v2")


@pytest.mark.parametrize("kind", [kind for kind in ExportFormat if kind is not ExportFormat.NPZ])
def test_all_formats_but_that_of_numpy_need_the_model(kind: ExportFormat) -> None:
    with pytest.raises(UsageError, match=rf"^the format {kind.value} needs your model; give "):
        ExportRequest(Path("w"), kind, None, is_forced=False)


@pytest.mark.parametrize("model", [None, NO_SCRIPT], ids=["no model", "a missing script"])
def test_archive_of_numpy_needs_no_run_of_the_script(
    model: ModelSource | None, tmp_path: Path
) -> None:
    target = tmp_path / "w.npz"
    request = ExportRequest(target, ExportFormat.NPZ, model, is_forced=False)

    export_state(restored(tmp_path), request)

    with np.load(target) as archive:
        assert sorted(archive) == sorted(STATE)


def test_compiled_model_takes_weights_and_the_optimizers_state(tmp_path: Path) -> None:
    model = compiled()

    load_into(model, restored(tmp_path))

    assert model.trainable_variables[0].value.tolist() == [0.0, 1.0]
    assert model.non_trainable_variables[0].value.tolist() == [7.0, 7.0]
    assert model.optimizer.variables[0].value == 0.5


def test_model_that_is_not_compiled_takes_only_the_weights(tmp_path: Path) -> None:
    model = Model()

    load_into(model, restored(tmp_path))

    assert model.trainable_variables[0].value.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"weights/bias": None}, r"missing 'weights/bias' float32\[2\];"),
        ({"optimizer/sgd/rate": None}, r"missing 'optimizer/sgd/rate'"),
        ({"optimizer/adam/m": np.zeros(2)}, r"extra 'optimizer/adam/m'"),
        ({"weights/extra": np.zeros(2)}, r"extra 'weights/extra'"),
        ({"weights/moving": np.zeros(2)}, r"'weights/moving' .* is 'weights/moving' .* there"),
    ],
    ids=["weight", "optimizer", "other optimizer", "extra weight", "other dtype"],
)
def test_state_of_another_model_is_refused_and_nothing_is_assigned(
    changes: dict[str, Tensor | None], complaint: str, tmp_path: Path
) -> None:
    state = {name: value for name, value in (STATE | changes).items() if value is not None}
    model = compiled()

    with pytest.raises(UsageError, match=rf"step 3 is of another model: {complaint}"):
        load_into(model, restored(tmp_path, state))

    assert [variable.value for variable in model.trainable_variables] == [None]


class Recorded(ModelSource):
    """A source whose models need no script; it tells for which training each was asked."""

    asked: ClassVar[list[int]] = []

    def build(self, stage: int = 1, record: Any = None) -> Any:
        self.asked.append(stage)
        return Model()


@pytest.mark.parametrize(("cursor", "stage"), [({}, 1), ({"stage": 3}, 3)], ids=["only", "third"])
def test_model_is_that_of_the_training_that_has_saved(
    cursor: dict[str, object], stage: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recorded, "asked", [])
    source = Recorded(Path("train.py"))
    target = tmp_path / "w.weights.h5"

    export_state(
        restored(tmp_path, **cursor),
        ExportRequest(target, ExportFormat.WEIGHTS, source, is_forced=False),
    )

    assert Recorded.asked == [stage]
    assert target.read_text() == "[[0.0, 1.0]]"
