"""``holdfast export``: files for NumPy and Keras, whole or not there."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from whole_save import save

from holdfast.checkpoint import filesystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.commands.export import ModelSource, export_state, publish
from holdfast.runtime.errors import ExitCode, ProgramError, UsageError

Holdfast = Callable[..., tuple[int, str, str]]

SCRIPT = Path(__file__).parent / "scripts" / "fake_model.py"


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def test_npz_holds_every_tensor_and_is_the_same_each_time(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / "state.npz", tmp_path / "there.npz"]
    paths[1].write_text("old")
    for path in paths:
        assert holdfast("export", run_dir, "--to", path, "--step", 4, "--force")[0] == 0

    found = load(paths[0])
    assert sorted(found) == [
        "cursor/step",
        "optimizer/sgd/iterations",
        "weights/dense/bias",
        "weights/dense/kernel",
    ]
    assert found["cursor/step"] == 4
    assert found["weights/dense/kernel"][499, 6] == 3499
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_npz_takes_any_name_and_widens_what_numpy_does_not_know(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    half = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    state = {"file": np.zeros(2), "half": half, "none": np.zeros((0, 3))}
    save(CheckpointStore(tmp_path / "run"), state, header=Header("r", 1, 1))

    assert holdfast("export", tmp_path / "run", "--to", tmp_path / "x.npz")[0] == 0

    found = load(tmp_path / "x.npz")
    assert found["half"].dtype == np.float32
    assert found["half"].tolist() == [1.5, -2.0]
    assert found["none"].shape == (0, 3)
    assert found["file"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "leaves"),
    [
        *((name, True) for name in ("../x", "a/../../x", "/etc/x", "a\\..\\x", "C:/x")),
        *((name, False) for name in ("a..b", "..", "...", ".hidden", "a/.../b", "c:d")),
    ],
)
def test_name_that_would_leave_the_folder_it_is_unpacked_in_is_refused(
    holdfast: Holdfast, tmp_path: Path, name: str, *, leaves: bool
) -> None:
    save(CheckpointStore(tmp_path / "run"), {name: np.zeros(2)}, header=Header("r", 1, 1))

    code, _, err = holdfast("export", tmp_path / "run", "--to", tmp_path / "x.npz")

    assert code == (ExitCode.USAGE if leaves else ExitCode.DONE)
    assert (f"tensor {name!r} cannot be the name of a file" in err) is leaves
    if leaves:
        assert os.listdir(tmp_path) == ["run"]
    else:
        assert list(load(tmp_path / "x.npz")) == [name]


def test_weights_are_written_by_the_users_model(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    """The script trains outside a guard; it is run up to there."""
    target = tmp_path / "w.weights.h5"

    code, _, err = holdfast("export", run_dir, "--to", target, "--model", f"{SCRIPT}:model")

    assert (code, err) == (0, "")
    assert json.loads(target.read_text()) == {
        "dense/bias": 42.0,
        "dense/kernel": 6123250.0,
        "sgd/iterations": 6.0,
    }
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("function", "code", "complaint"),
    [
        ("wider", 2, "'weights/dense/bias' float32[8] is 'weights/dense/bias' float32[7] there"),
        ("nothing", 2, "has no function nothing"),
        ("not_a_function", 2, "has no function not_a_function"),
        ("no_model", 2, "makes a int"),
        ("not_built", 1, "raised TypeError"),
        ("fails", 1, "fake_model.py:fails raised RuntimeError: no luck today"),
        ("not_compiled", 1, "could not be made: AttributeError"),
        ("trains", 1, "only asked for its model"),
    ],
)
def test_bad_model_is_one_sentence_and_nothing_is_written(
    function: str, code: int, complaint: str, *, holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    target = tmp_path / "w.weights.h5"

    found = holdfast("export", run_dir, "--to", target, "--model", f"{SCRIPT}:{function}")

    assert found[0] == code
    assert complaint in found[2]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--to", "x.txt"], "no known format"),
        (["--to", "x.keras"], "a .keras file needs your model"),
        (["--to", "x"], "no known format; end it in .npz, .weights.h5 or .keras"),
        (["--to", "x.keras", "--model", "nowhere.py:f"], "nowhere.py does not exist"),
        (["--to", "x.keras", "--model", f"{SCRIPT}:f.g"], "give it as script.py:function"),
        (["--to", "x.keras", "--model", f"{SCRIPT}:f", "--input-shape", "3x"], "--input-shape"),
        (["--to", "nowhere/x.npz"], "nowhere is not a directory"),
        (["--to", "dangling.npz"], "exists; choose another --to"),
        (["--to", "there.npz"], "exists; choose another --to, or replace it with --force"),
        (["--to", "folder.npz", "--force"], "is a directory; choose another --to"),
        (["--to", "x.npz", "--step", "5"], "has no step 5"),
    ],
)
def test_bad_requests_are_one_sentence_and_exit_2(
    argv: list[str],
    complaint: str,
    holdfast: Holdfast,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(run_dir.parent)
    Path("there.npz").write_text("mine")
    Path("folder.npz").mkdir()
    Path("dangling.npz").symlink_to("nowhere")

    code, out, err = holdfast("export", run_dir, *argv)

    assert (code, out) == (2, "")
    assert complaint in err
    assert Path("there.npz").read_text() == "mine"
    names = sorted(path.name for path in Path().iterdir())
    assert names == ["dangling.npz", "folder.npz", "run", "there.npz"]


def test_model_that_does_not_know_its_input_needs_its_shape(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "m.py").write_text(SCRIPT.read_text().partition("\ntrains()")[0])
    source = f"{tmp_path}/m.py:not_built"

    code, _, err = holdfast("export", run_dir, "--to", tmp_path / "w.keras", "--model", source)

    assert code == 2
    assert "--input-shape 28,28,1" in err


def test_damaged_step_is_not_exported(holdfast: Holdfast, run_dir: Path, tmp_path: Path) -> None:
    shard = next((run_dir / "checkpoints/step-000000000006").glob("shard-00001*"))
    os.truncate(shard, shard.stat().st_size - 1)

    code, _, err = holdfast("export", run_dir, "--to", tmp_path / "x.npz")

    assert code == 1
    assert "checkpoint step 6 is invalid: shard 1 has" in err
    assert not (tmp_path / "x.npz").exists()


MODELS = """
import sys

class Model:
    trainable_variables = non_trainable_variables = variables = ()

    def __init__(self, name, built=True, optimizer=None):
        self.name, self.built, self.optimizer = name, built, optimizer
        self.calls = []

    def build(self, shape):
        self.calls.append(shape)

    def __call__(self, inputs):
        self.calls.append(inputs.tolist())

    def save_weights(self, path):
        path.write_text(self.name)

class Optimizer:
    built, variables = False, ()

    def build(self, variables):
        self.built = True

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


@pytest.mark.parametrize(
    ("cursor", "name"), [({}, "shapeless"), ({"stage": 2}, "of the function")], ids=["first", "2nd"]
)
def test_script_that_trains_twice_gives_the_model_of_the_training_that_has_saved(
    cursor: dict[str, object], name: str, script: Path, tmp_path: Path
) -> None:
    script.write_text(MODELS + TRAINING)
    store, target = CheckpointStore(tmp_path / "run"), tmp_path / "w.weights.h5"
    save(store, {"cursor/step": np.array(3)}, header=Header("r", 1, 3), cursor=cursor)

    export_state(restore(store, 3), target, ModelSource(script))

    assert target.read_text() == name


def test_script_that_never_comes_to_the_wanted_training_is_refused(script: Path) -> None:
    once = TRAINING.replace("Trainer(model", "#").partition("raise")[0]

    with pytest.raises(UsageError, match=r"train\.py does not come to model\.fit\(\) or to a "):
        build(script, MODELS + once, None, stage=2)


def test_shape_of_one_sample_builds_model_and_optimizer(script: Path) -> None:
    found = build(script, MODELS, "shapeless", input_shape=(28, 28))

    assert found.calls == [(None, 28, 28)]
    assert found.optimizer.built


def test_data_of_the_training_build_a_model_that_knows_no_shape(script: Path) -> None:
    found = build(script, MODELS + TRAINING, None)

    assert found.calls == [[[4.0]]]
    assert found.optimizer.built


def test_refusal_of_holdfast_itself_reaches_the_user_as_it_is(script: Path) -> None:
    text = "from holdfast.runtime.errors import UsageError\nraise UsageError('mine')"

    with pytest.raises(UsageError, match=r"^mine$"):
        build(script, text)


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
    assert os.listdir(tmp_path) == ["file"]


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
    assert os.listdir(tmp_path) == ["file"]


def test_link_is_replaced_and_not_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "precious")

    publish(tmp_path / "link", write_file, is_forced=True)

    assert not (tmp_path / "link").is_symlink()
    assert ((tmp_path / "link").read_text(), (tmp_path / "precious").read_text()) == ("new", "mine")
