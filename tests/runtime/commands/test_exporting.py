"""An export is whole or not there, and needs the model that the user's script makes."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from whole_save import save

from holdfast.checkpoint import filesystem
from holdfast.checkpoint.reader import Restored, restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensor
from holdfast.runtime.commands.export import (
    ModelSource,
    export_state,
    load_into,
    publish,
)
from holdfast.runtime.errors import ProgramError, UsageError

STATE: dict[str, Tensor] = {
    "companion/mine": np.arange(2),
    "cursor/step": np.array(3),
    "optimizer/sgd/rate": np.array(0.5, np.float32),
    "weights/bias": np.arange(2, dtype=np.float32),
    "weights/moving": np.full(2, 7, np.float32),
}


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

    @property
    def variables(self) -> list[Variable]:
        return [*self.trainable_variables, *self.non_trainable_variables]

    def save_weights(self, path: Path) -> None:
        path.write_text(repr([variable.value.tolist() for variable in self.trainable_variables]))


def compiled() -> Model:
    return Model(SimpleNamespace(variables=[Variable("sgd/rate", ())]))


def restored(folder: Path, state: dict[str, Tensor] | None = None, **cursor: object) -> Restored:
    store = CheckpointStore(folder / "run")
    save(store, state or STATE, header=Header("r", 1, 3), cursor=cursor)
    return restore(store, 3)


def test_compiled_model_takes_weights_and_the_optimizers_state(tmp_path: Path) -> None:
    model = compiled()

    load_into(model, restored(tmp_path))

    assert model.trainable_variables[0].value.tolist() == [0.0, 1.0]
    assert model.non_trainable_variables[0].value.tolist() == [7.0, 7.0]
    assert model.optimizer.variables[0].value == 0.5


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

    export_state(restored(tmp_path, **cursor), target, source)

    assert Recorded.asked == [stage]
    assert target.read_text() == "[[0.0, 1.0]]"


MODELS = """
import sys

class Model:
    def __init__(self, name, built=True, optimizer=None):
        self.name, self.built, self.optimizer = name, built, optimizer
        self.trainable_variables, self.calls = ["kernel"], []

    def build(self, shape):
        self.calls.append(shape)

    def __call__(self, inputs):
        self.calls.append(inputs.tolist())

class Optimizer:
    built = False

    def build(self, variables):
        self.variables = list(variables)

def model():
    return Model("of the function")

def shapeless():
    return Model("shapeless", built=False, optimizer=Optimizer())
"""

TRAINING = """
import numpy as np
from holdfast import ArrayData, Trainer
data = ArrayData(np.array([[4.0], [5.0]], np.float32), np.zeros(2, np.float32))
Trainer(shapeless, data, global_batch=1, epochs=1).run()
Trainer(model, data, global_batch=1, epochs=1).run()
raise AssertionError("the script goes on behind its trainings")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A path whose script may import its neighbours, which are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    yield tmp_path / "train.py"
    for name in ("holdfast_model", "a_neighbour"):
        sys.modules.pop(name, None)


def build(script: Path, text: str, function: str | None = "model", **options: Any) -> Any:
    script.write_text(text)
    stage = options.pop("stage", 1)
    return ModelSource(script, function, **options).build(stage)


def test_script_finds_itself_its_neighbours_and_no_arguments(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["holdfast", "export", "--to", "w.npz"])
    (script.parent / "a_neighbour.py").write_text("WORD = 'hello'")
    telling = (
        "import a_neighbour\n"
        "def model():\n"
        "    return Model([a_neighbour.WORD, sys.argv, sys.modules[__name__].__file__])\n"
    )

    found = build(script, MODELS + telling)

    assert found.name == ["hello", [str(script)], str(script)]
    assert sys.argv == ["holdfast", "export", "--to", "w.npz"]


def test_main_program_is_this_one_again_after_a_script_that_fails(script: Path) -> None:
    before, argv = sys.modules["__main__"], sys.argv

    with pytest.raises(ProgramError):
        build(script, "raise ValueError", None)

    assert sys.modules["__main__"] is before
    assert sys.argv is argv


@pytest.mark.parametrize(
    ("stage", "name"), [(1, "shapeless"), (2, "of the function")], ids=["first", "second"]
)
def test_script_that_trains_twice_gives_the_model_of_the_wanted_training(
    stage: int, name: str, script: Path
) -> None:
    assert build(script, MODELS + TRAINING, None, stage=stage).name == name


def test_script_that_never_comes_to_the_wanted_training_is_refused(script: Path) -> None:
    once = TRAINING.replace("Trainer(model", "#").partition("raise")[0]

    with pytest.raises(UsageError, match=r"train\.py does not come to model\.fit\(\) or to a "):
        build(script, MODELS + once, None, stage=2)


def test_shape_of_one_sample_builds_model_and_optimizer(script: Path) -> None:
    found = build(script, MODELS, "shapeless", input_shape=(28, 28))

    assert found.calls == [(None, 28, 28)]
    assert found.optimizer.variables == ["kernel"]


def test_data_of_the_training_build_a_model_that_knows_no_shape(script: Path) -> None:
    found = build(script, MODELS + TRAINING, None)

    assert found.calls == [[[4.0]]]
    assert found.optimizer.variables == ["kernel"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("raise KeyError('odd')", "train.py raised KeyError: 'odd'"),
        ("raise SystemExit(3)", "train.py ended the program with exit code 3"),
        ("def model(): raise SystemExit", "train.py:model ended the program with exit code None"),
        ("def model(): return 1 / 0", "train.py:model raised ZeroDivisionError"),
    ],
)
def test_fault_of_the_users_code_says_where_it_was(text: str, complaint: str, script: Path) -> None:
    with pytest.raises(ProgramError) as caught:
        build(script, text)

    assert complaint in str(caught.value)


def test_refusal_of_holdfast_itself_reaches_the_user_as_it_is(script: Path) -> None:
    text = "from holdfast.runtime.errors import UsageError\nraise UsageError('mine')"

    with pytest.raises(UsageError, match=r"^mine$"):
        build(script, text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), UsageError, "No space left on device"),
        (ValueError("two\nlines"), ProgramError, "could not be made: ValueError"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_failure_leaves_what_was_there(
    error: BaseException, kind: type[BaseException], text: str, tmp_path: Path
) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def write(draft: Path) -> None:
        draft.write_text("half")
        raise error

    with pytest.raises(kind, match=text):
        publish(target, write, is_forced=True)

    assert target.read_text() == "old"
    assert names(tmp_path) == ["file"]


def write_file(draft: Path) -> None:
    draft.write_text("new")


def test_others_neither_reach_nor_guess_the_draft(tmp_path: Path) -> None:
    """Keras opens a name that it is given, and follows a link that was planted there."""
    folders: list[tuple[str, int]] = []

    def write(draft: Path) -> None:
        folders.append((draft.parent.name, stat.S_IMODE(draft.parent.stat().st_mode)))
        draft.write_text("new")

    before = os.umask(0)
    try:
        for name in ("one", "two"):
            publish(tmp_path / name, write, is_forced=False)
    finally:
        os.umask(before)

    assert [mode for _, mode in folders] == [0o700, 0o700]
    (one, _), (two, _) = folders
    assert one != two
    assert one.startswith(".holdfast-export-")


def test_file_that_appears_meanwhile_stays_where_rename_would_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS has no rename that spares what is there."""
    monkeypatch.setattr(filesystem, "renameat2", lambda source, target: False)
    target = tmp_path / "file"

    def write(draft: Path) -> None:
        draft.write_text("mine")
        target.write_text("theirs")

    with pytest.raises(UsageError, match="File exists"):
        publish(target, write, is_forced=False)

    assert target.read_text() == "theirs"


def test_file_system_without_links_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    publish(tmp_path / "file", write_file, is_forced=False)

    assert (tmp_path / "file").read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_link_is_replaced_and_not_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "precious")

    publish(tmp_path / "link", write_file, is_forced=True)

    assert not (tmp_path / "link").is_symlink()
    assert ((tmp_path / "link").read_text(), (tmp_path / "precious").read_text()) == ("new", "mine")


def test_writer_that_makes_nothing_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")

    with pytest.raises(UsageError, match="No such file or directory"):
        publish(tmp_path / "file", lambda _: None, is_forced=True)

    assert (tmp_path / "file").read_text() == "old"
