"""What a worker prepares before the script uses TensorFlow or Keras."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pkgutil
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from configs import worker_config

from holdfast.runtime.keras import script_setup
from holdfast.runtime.keras.script_setup import (
    keep_in_memory,
    leave_out,
    leave_out_cluster,
    model_only,
    when_imported,
    without_log_lines,
)
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.script import calls, modules
from holdfast.runtime.script.overlay import act_by
from holdfast.runtime.worker.context import TrainingRefused, is_refused

NUMPY_SEEDS = 1 << 32


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What waits for an import, by the module; numbers and Python's functions are put back."""
    states = random.getstate(), np.random.get_state()
    found: dict[str, Any] = {}
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)
    monkeypatch.setattr(time, "strftime", time.strftime)
    monkeypatch.setattr(calls, "_sharing", None)
    monkeypatch.setattr(modules, "_own", None)
    monkeypatch.setattr(calls, "draw_alike", lambda seed, script: None)
    monkeypatch.setattr(
        script_setup, "when_imported", lambda name, then: found.update({name: then})
    )
    yield found
    act_by({})
    random.setstate(states[0])
    np.random.set_state(states[1])


@pytest.mark.parametrize("seed", [5, NUMPY_SEEDS - 1, NUMPY_SEEDS, (1 << 63) + 5])
def test_script_has_the_seed_of_the_run_on_all_workers_and_heavy_libraries_wait(
    watched: dict[str, Any], seed: int
) -> None:
    random.seed(seed)
    np.random.seed(seed % NUMPY_SEEDS)  # it takes no larger one
    expected = random.random(), float(np.random.random())

    for worker in (0, 1):
        script_setup.prepare(worker_config(worker, (0, 1), seed=seed))
        assert (random.random(), float(np.random.random())) == expected
    assert list(watched) == ["h5py", "sqlite3", "tensorflow", "keras"]


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize(("generation", "is_shared"), [(1, False), (2, True), (9, True)])
def test_directory_that_an_earlier_launch_has_made_is_that_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generation: int, *, is_shared: bool
) -> None:
    run_dir, results = tmp_path / "run", tmp_path / "results"
    run_dir.mkdir()
    results.mkdir()
    config = worker_config(run_dir=run_dir, generation=generation)
    handed: list[Any] = []

    def main(config: WorkerConfig, control_fd: int, heartbeat_fd: int, prepare: Any) -> None:
        handed.append((control_fd, heartbeat_fd))
        prepare(config)

    monkeypatch.setattr(script_setup.worker, "main", main)
    script_setup.main(config, 3, 4)
    raised = False
    try:
        os.mkdir(results)
    except FileExistsError:
        raised = True

    assert handed == [(3, 4)]
    assert raised is not is_shared


@pytest.mark.tensorflow
@pytest.mark.parametrize("fit", [True, False])
def test_scopes_are_left_out_unless_the_user_wants_keras_left_alone(
    watched: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, fit: bool
) -> None:
    tf = pytest.importorskip("tensorflow")
    from holdfast.runtime.model import graphs
    from holdfast.runtime.training import stages

    threads: list[int] = []
    left_out: list[Any] = []
    kept: list[bool] = []
    context = SimpleNamespace(context=SimpleNamespace(inform=print, at_end=[]))
    monkeypatch.setattr(graphs, "set_threads", threads.append)
    monkeypatch.setattr(script_setup, "keep_in_memory", lambda: kept.append(True))
    monkeypatch.setattr(script_setup, "leave_out", lambda *arguments: left_out.append(arguments))
    for name in ("share_caches", "share_checkpoints", "exchange_generator"):
        monkeypatch.setattr(script_setup, name, lambda *_: None)
    monkeypatch.setattr(stages, "stages_of_script", lambda: context)
    script_setup.prepare(worker_config(fit=fit))

    watched["tensorflow"]()

    assert (threads, kept) == ([1], [True])
    assert left_out == ([(tf.distribute.Strategy, print)] if fit else [])


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package that nobody has imported."""
    package = tmp_path / "seldom_heard_of"
    package.mkdir()
    (package / "__init__.py").write_text("from seldom_heard_of import part\nvalue = 1\n")
    (package / "part.py").write_text("name = __name__\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in ("seldom_heard_of", "seldom_heard_of.part"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "seldom_heard_of"


def test_watchers_of_one_module_hear_of_it_and_at_once_if_it_is_there(module: str) -> None:
    heard: list[int] = []
    for number in (1, 2):
        when_imported(module, lambda number=number: heard.append(number))  # type: ignore[misc]
    when_imported("never_written_by_anybody", lambda: pytest.fail("there is no such module"))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("never_written_by_anybody")

    importlib.import_module(module)
    when_imported(module, lambda: heard.append(3))

    assert sorted(heard[:2]) == [1, 2]
    assert heard[2:] == [3]


def test_informative_lines_of_a_log_are_dropped_and_all_others_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    lines = (
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795437874.402156   10642 port.cc:153] oneDNN custom operations are on.",
        "E0000 00:00:1795437874.402157   10642 cuda.cc:1] no device",
        "Traceback (most recent call last):",
    )

    def load() -> None:
        with without_log_lines():
            os.write(2, "".join(f"{line}\n" for line in lines).encode())
            raise ImportError

    with pytest.raises(ImportError):
        load()

    assert capfd.readouterr().err.splitlines() == list(lines[2:])


@pytest.mark.parametrize("fails", [False, True])
def test_what_surrounds_an_import_ends_before_the_watcher_hears_of_it(
    module: str, tmp_path: Path, *, fails: bool
) -> None:
    heard: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        heard.append("begins")
        try:
            yield
        finally:
            heard.append("ends")

    when_imported(module, lambda: heard.append("imported"), around)
    if fails:
        (tmp_path / module / "__init__.py").write_text("1 / 0\n")
        with pytest.raises(ZeroDivisionError):
            importlib.import_module(module)
    else:
        importlib.import_module(module)

    assert heard == ["begins", "ends", *([] if fails else ["imported"])]


def test_module_finds_its_files_while_it_is_imported(module: str, tmp_path: Path) -> None:
    code = "import pkgutil\nvalue = pkgutil.get_data(__name__, 'part.py')\n"
    (tmp_path / module / "__init__.py").write_text(code)
    when_imported(module, lambda: None)

    assert importlib.import_module(module).value == b"name = __name__\n"


def _asks_for_a_part(module: str) -> None:
    importlib.util.find_spec(f"{module}.part")


def _asks_pkgutil(module: str) -> None:
    assert module in {found.name for found in pkgutil.iter_modules()}
    pkgutil.get_importer(sys.path[0]).find_spec(module)  # type: ignore[union-attr]
    importlib.util.find_spec(module)


def _fails_first(module: str) -> None:
    with _in_place_of_init(module, "1 / 0\n"), pytest.raises(ZeroDivisionError):
        importlib.import_module(module)


def _lacks_a_name_first(module: str) -> None:
    code = "from seldom_heard_of.nowhere import name\n"
    with _in_place_of_init(module, code), pytest.raises(ImportError):
        importlib.import_module(module)


def _imports_in_a_thread(module: str) -> None:
    thread = threading.Thread(target=importlib.import_module, args=(module,))
    thread.start()
    thread.join()


def _imports_when_used(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    sys.modules[module] = lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    assert lazy.value == 1


def _makes_a_module_of_the_spec(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _chains_its_own_hook(module: str) -> None:
    """As the hooks of tracing libraries do: first in the list, and they ask the others."""

    class Hook(MetaPathFinder):
        is_asking = False

        def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
            if name != module or self.is_asking:
                return None
            self.is_asking = True
            return importlib.util.find_spec(name)

    sys.meta_path.insert(0, Hook())


@contextmanager
def _in_place_of_init(module: str, code: str) -> Iterator[None]:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    place = Path(spec.origin)
    good = place.read_text()
    place.write_text(code)
    yield
    shutil.rmtree(place.parent / "__pycache__", ignore_errors=True)
    place.write_text(good)


@pytest.mark.parametrize(
    "first",
    [
        importlib.util.find_spec,
        *(_asks_for_a_part, _asks_pkgutil, _fails_first, _lacks_a_name_first),
        *(_imports_in_a_thread, _imports_when_used, _makes_a_module_of_the_spec),
        _chains_its_own_hook,
    ],
)
def test_watcher_hears_of_its_module_once_whatever_a_script_does_first(
    module: str, first: Callable[[str], object]
) -> None:
    before = list(sys.meta_path)
    heard: list[int] = []
    when_imported(module, lambda: heard.append(importlib.import_module(module).value))

    importlib.util.find_spec("never_written_by_anybody")
    first(module)
    imported = importlib.import_module(module)
    importlib.reload(imported)

    assert heard == [1]
    assert type(imported.__spec__.loader).__name__ == "SourceFileLoader"
    assert [found for found in sys.meta_path if type(found).__name__ != "Hook"] == before


def test_watcher_that_refused_is_asked_again(module: str) -> None:
    heard: list[str] = []

    def refuse_once() -> None:
        heard.append("asked")
        if len(heard) == 1:
            raise ValueError("not here")

    when_imported(module, refuse_once)

    with pytest.raises(ValueError, match="not here"):
        importlib.import_module(module)
    importlib.import_module(module)

    assert heard == ["asked", "asked"]


LOADER = "tensorflow.python.autograph.pyct.loader"


@pytest.mark.tensorflow
def test_function_is_translated_without_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    loader: Any = sys.modules[LOADER]
    monkeypatch.setattr(loader, "load_source", loader.load_source)
    with pytest.MonkeyPatch.context() as another_release:
        another_release.delitem(sys.modules, LOADER)
        keep_in_memory()
        assert LOADER not in sys.modules
    keep_in_memory()
    before = set(sys.modules)

    @tf.function
    def absolute(x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            return x
        if x.shape.rank == 0:
            return -x
        raise ValueError("of one number only")

    assert float(absolute(tf.constant(-2.0))) == 2.0
    made = [name for name in set(sys.modules) - before if name.startswith("__autograph_generated")]
    assert made
    assert list(tmp_path.iterdir()) == []
    assert not sys.dont_write_bytecode
    assert "def tf__absolute" in inspect.getsource(sys.modules[made[0]])
    with pytest.raises(ValueError, match=r"(?s)in user code.*absolute.*of one number only"):
        absolute(tf.constant([1.0, -2.0]))


@pytest.mark.tensorflow
def test_variables_within_a_scope_are_plain_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tensorflow as tf

    told: list[str] = []
    monkeypatch.setattr(tf.distribute.Strategy, "scope", tf.distribute.Strategy.scope)
    leave_out(tf.distribute.Strategy, told.append)
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    with strategy.scope() as entered:
        variable = tf.Variable(3.0)
    with tf.distribute.get_strategy().scope():  # TensorFlow's own, for scripts that have none
        assert entered is strategy

    assert type(variable).__name__ == "ResourceVariable"
    assert tf.distribute.has_strategy() is False
    assert float(strategy.run(lambda: variable * 2)) == 6.0
    assert len(set(told)) == 1
    assert told[0].startswith("the scope of MirroredStrategy is left out")


@pytest.mark.tensorflow
def test_strategy_of_several_workers_starts_no_server_and_the_cluster_is_told() -> None:
    import tensorflow as tf

    class Resolver(tf.distribute.cluster_resolver.SimpleClusterResolver):  # type: ignore[misc]
        """As that of TF_CONFIG, which other tests of this process may have left out already."""

    addresses = tf.train.ClusterSpec({"worker": ["localhost:12345", "localhost:23456"]})
    told: list[str] = []
    leave_out_cluster(Resolver, told.append)

    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        Resolver(addresses, task_type="worker", task_id=0)
    )

    assert strategy.num_replicas_in_sync == 1
    assert told
    assert set(told) == {told[0]}
    assert told[0].startswith("the cluster of TF_CONFIG is left out")


X = np.arange(6, dtype=np.float32)[:, None]


def one_layer() -> Any:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def pipeline() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, X)).batch(4)


@pytest.mark.tensorflow
@pytest.mark.parametrize("given", ["arrays", "pipeline"])
def test_first_fit_ends_the_script_and_gives_model_and_inputs(given: str) -> None:
    model = one_layer()
    before = model.get_weights()
    data = (X, X) if given == "arrays" else (pipeline(),)

    with model_only() as refusal, pytest.raises(TrainingRefused, match="only asked for its model"):
        model.fit(*data)

    assert refusal.first_inputs is not None
    assert refusal.model is model
    assert np.asarray(refusal.first_inputs()).tolist() == [[0.0]]
    assert all(map(np.array_equal, before, model.get_weights()))


@pytest.mark.tensorflow
def test_fits_before_the_one_that_is_wanted_give_an_empty_history() -> None:
    first, second = one_layer(), one_layer()
    before = first.get_weights()

    with model_only(wanted=2) as refusal:
        history = first.fit(X, X, epochs=3)
        assert refusal.first_inputs is None
        with pytest.raises(TrainingRefused):
            second.fit(X, X)

    assert history.history == {}
    assert refusal.first_inputs is not None
    assert refusal.model is second
    assert all(map(np.array_equal, before, first.get_weights()))


@pytest.mark.tensorflow
def test_fit_is_keras_own_again_after_an_error_of_the_script() -> None:
    model = one_layer()
    plain = type(model).fit

    def fail() -> None:
        with model_only():
            assert type(model).fit is not plain
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert type(model).fit is plain
    assert len(model.fit(X, X, verbose=0).history["loss"]) == 1
    assert not is_refused(model, lambda: None)
