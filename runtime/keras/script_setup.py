"""The entry of a worker whose script may call Keras's ``fit``, and what is set up before it does.

A worker prepares TensorFlow before the script's first use of it.  But a script that needs no
TensorFlow must not wait for its import.  So the imports of the script are watched.

TensorFlow writes each function that it has translated into a file for temporary files, and removes
it when the process ends.  A worker that is killed ends without that.  So the file is removed as
soon as it was loaded, and its lines stay where Python looks for source code.

The scopes and clusters of ``tf.distribute`` are left out: workers share each batch.  Within such a
scope TensorFlow makes variables of several copies.  A worker of holdfast has one copy of the model,
so there is nothing that a scope could distribute.  For a cluster each worker would start a server
of TensorFlow, all of them at the same address.

A script may also be run only for its model: then a ``fit`` in it refuses to train.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import linecache
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any, NoReturn, TypeAlias

from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.program import is_users
from holdfast.runtime.script.draws import exchange_generator, seed_script
from holdfast.runtime.script.modules import OwnFiles, run_as_begun
from holdfast.runtime.script.overlay import PrivateFolder
from holdfast.runtime.script.process import ScriptProcess, run_script_in
from holdfast.runtime.script.saves import share_caches, share_checkpoints
from holdfast.runtime.system.worker_status import Phase
from holdfast.runtime.worker import worker
from holdfast.runtime.worker.context import (
    Refusal,
    current,
    training_refused,
    when_all_have_left,
    when_script_has_ended,
)

Around: TypeAlias = Callable[[], AbstractContextManager[None]]


_LOG_LINE = re.compile(rb"I\d{4} \d\d:\d\d:|WARNING: All log messages before absl::InitializeLog")
"""What TensorFlow writes while it is loaded, at any TF_CPP_MIN_LOG_LEVEL (2.21)."""


def when_imported(name: str, then: Callable[[], None], around: Around = nullcontext) -> None:
    """Call ``then`` once module ``name`` is imported: now if it is, else right after.

    ``around`` is entered while the module is imported.
    """
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Watch(name, then, around))


@contextmanager
def without_log_lines() -> Iterator[None]:
    """Keep informative lines of a library's log from stderr; all other lines come at the end."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with os.fdopen(os.memfd_create("log"), "rb") as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            for line in kept:
                if not _LOG_LINE.match(line):
                    os.write(2, line)


class _Watch(MetaPathFinder):
    """Finds one module as all others find it, and watches its loader until it was imported.

    A question for the spec imports nothing, and an import may fail.  So the watch goes on until
    the watcher has heard of the module.
    """

    def __init__(self, name: str, then: Callable[[], None], around: Around) -> None:
        self._name = name
        self._then = then
        self._around = around
        self._has_told = False
        self._here = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of the watched module, None for any other."""
        if name != self._name or self._is_looking_away:
            return None
        with self._looking_away():  # the search must not meet it, in this thread
            spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _WatchedLoader(spec.loader, self)
        return spec

    def around(self) -> AbstractContextManager[None]:
        """Return what is entered while the module is imported."""
        return self._around()

    def imported(self) -> None:
        """Tell of the module, once."""
        if self._has_told or self._is_looking_away:
            return
        with self._looking_away():  # what hears of it may import the module itself
            self._then()
        self._has_told = True
        with contextlib.suppress(ValueError):  # the script may have made another list
            sys.meta_path.remove(self)

    @property
    def _is_looking_away(self) -> bool:
        return bool(getattr(self._here, "is_looking_away", False))

    @contextmanager
    def _looking_away(self) -> Iterator[None]:
        self._here.is_looking_away = True
        try:
            yield
        finally:
            self._here.is_looking_away = False


class _WatchedLoader(Loader):
    """A loader whose watch hears when its module is complete."""

    def __init__(self, loader: Loader, watch: _Watch) -> None:
        self._loader = loader
        self._watch = watch

    def __getattr__(self, name: str) -> object:
        """Answer questions about resources and source as the other loader does."""
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, then call back."""
        with self._watch.around():
            self._loader.exec_module(module)
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__.loader = self._loader
        self._watch.imported()


_LOADER = "tensorflow.python.autograph.pyct.loader"


def keep_in_memory() -> None:
    """Let TensorFlow, which is imported, leave no file of generated code from now on."""
    loader = sys.modules.get(_LOADER)
    if loader is None:
        return  # another release of TensorFlow; then the files stay until the process ends
    load = loader.load_source

    @functools.wraps(load)
    def load_source(source: str, *args: Any, **arguments: Any) -> Any:
        writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        try:
            module, path = load(source, *args, **arguments)
        finally:
            sys.dont_write_bytecode = writes_none
        _keep(path, source)
        return module, path

    loader.load_source = load_source  # type: ignore[attr-defined]


def _keep(path: str, source: str) -> None:
    """Remove a file, and keep its lines; those without a time of change are never looked up."""
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    os.unlink(path)


def leave_out(strategy_class: Any, tell: Callable[[str], None]) -> None:
    """Let ``scope()`` of every strategy change nothing from now on.

    Args:
        strategy_class: ``tf.distribute.Strategy``, from which all strategies come.
        tell: shows one line to the user, when a script enters a scope.
    """
    plain = strategy_class.scope

    @functools.wraps(plain)
    def scope(self: Any) -> contextlib.AbstractContextManager[Any]:
        name = type(self).__name__
        if name.startswith("_"):  # TensorFlow's own, for scripts that have none
            return plain(self)  # type: ignore[no-any-return]
        tell(
            f"the scope of {name} is left out: the workers of holdfast share each "
            "batch, and its size is the global one (--no-fit leaves scopes alone)"
        )
        return contextlib.nullcontext(self)

    strategy_class.scope = scope


def leave_out_cluster(resolver_class: Any, tell: Callable[[str], None]) -> None:
    """Let the cluster of ``TF_CONFIG`` be empty from now on, as on a machine without one.

    Args:
        resolver_class: ``tf.distribute.cluster_resolver.TFConfigClusterResolver``.
        tell: shows one line to the user, when a strategy asks for the cluster.
    """
    plain = resolver_class.cluster_spec

    @functools.wraps(plain)
    def cluster_spec(self: Any) -> Any:
        found = plain(self)
        if not found.as_dict():
            return found
        tell(
            "the cluster of TF_CONFIG is left out: the workers are those of holdfast run -n "
            "(--no-fit leaves it alone)"
        )
        return type(found)({})

    resolver_class.cluster_spec = cluster_spec


@contextlib.contextmanager
def model_only(wanted: int = 1) -> Iterator[Refusal]:
    """Refuse each training of the script that runs meanwhile; number ``wanted`` ends it."""
    when_imported("tensorflow", _take_nothing, without_log_lines)
    when_imported("keras", _refuse_training)
    with training_refused(wanted) as refusal:
        try:
            yield refusal
        finally:
            _give_back()


def _take_nothing() -> None:
    """Leave TensorFlow as it is."""


def _refuse_training() -> None:
    from holdfast.runtime.keras import keras_fit

    keras_fit.take_over()


def _give_back() -> None:
    keras = sys.modules.get("keras")
    if keras is not None and "fit" in vars(keras.Model):
        del keras.Model.fit  # Keras's own is inherited


def main(config: WorkerConfig, control_fd: int, heartbeat_fd: int) -> NoReturn:
    """Run the worker that ``config`` describes, in a fresh process of the pool."""
    began = time.time()  # no worker runs its script before all have come here
    worker.main(config, control_fd, heartbeat_fd, lambda config: prepare(config, began))


def prepare(config: WorkerConfig, began: float = 0.0) -> None:
    """Give the script the same numbers, names and directories on every worker, and our ``fit``."""
    path = config.script
    record = config.script_record
    own = OwnFiles(
        config,
        record,
        lambda text: current().notify(text),
        began=began,
        is_early=lambda: current().page.phase is Phase.STARTING,
    )
    run_as_begun(own)
    for module in config.options.named_modules:  # of the user's own, it may be an older text
        if is_users(getattr(sys.modules.get(module), "__file__", None) or "<built in>"):
            del sys.modules[module]
    process = ScriptProcess(
        path,
        record,
        config.run_dir,
        lambda: private_folder()(),  # noqa: PLW0108  (no earlier than it is needed)
        began if config.generation == 1 else 0.0,  # later launches find what the first made
        lambda: f"{config.generation} {current().page.step}",
    )
    run_script_in(process)
    when_script_has_ended(process.files.finish)
    when_all_have_left(process.files.conclude)
    when_all_have_left(process.folders.remove_temporary)
    when_imported("h5py", lambda: process.files.share_hdf5(sys.modules["h5py"]))
    when_imported("sqlite3", lambda: process.stores.share(sys.modules["sqlite3"]))
    seed_script(config.seed, config.record.draw_seed or config.run_id, path)
    when_imported("tensorflow", lambda: _prepare_tensorflow(config, process))
    when_imported("keras", lambda: _take_over(config))


@functools.cache
def private_folder() -> PrivateFolder:
    """Return this process's private folder, which is removed when the script has ended."""
    from holdfast.runtime.training.stages import stages_of_script  # it loads NumPy

    stages = stages_of_script()
    context = stages.context
    folder = PrivateFolder(context.run_dir, context.config.worker)
    folder.clear(context.config.workers)
    when_script_has_ended(lambda: folder.clear(stages.world.workers))
    return folder


def _prepare_tensorflow(config: WorkerConfig, process: ScriptProcess) -> None:
    """Fix the numerics of TensorFlow before the script uses it; leave out scopes and files."""
    from holdfast.runtime.model import graphs
    from holdfast.runtime.training.stages import stages_of_script

    graphs.set_threads(config.threads)
    keep_in_memory()
    exchange_generator(sys.modules["tensorflow"].random.Generator)
    if config.options.fit:
        share_caches(sys.modules["tensorflow"], process.scratch)
        share_checkpoints(sys.modules["tensorflow"], process.writes)
        distribute = sys.modules["tensorflow"].distribute
        tell = stages_of_script().context.inform
        leave_out(distribute.Strategy, tell)
        leave_out_cluster(distribute.cluster_resolver.TFConfigClusterResolver, tell)


def _take_over(config: WorkerConfig) -> None:
    """Make ``keras.Model.fit`` the collective, unless the user wants it left alone."""
    from holdfast.runtime.keras import keras_fit

    keras_fit.prepare(config)
