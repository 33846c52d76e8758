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

*Loops of its own*, outside of ``fit``: nobody can share or save what they train.  Each worker would
train alone to its end, and then the job is refused.  So such a loop is refused at its second step.
One step is harmless: some scripts make the variables of an optimizer with it.  A helper net may be
trained so beside a ``fit``, before or after it: then the user is told.  A library may call ``fit``,
too, and nobody can know.  With one that uses Keras, the user is told first, and the loop is refused
if no ``fit`` has begun after many steps.

A step is an update by a Keras optimizer.  Of a function of TensorFlow only the tracing is seen.  So
each of its calls is a step of the optimizers that it was traced with, and a loop within it is seen
in its graph.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.machinery
import importlib.util
import linecache
import math
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.program import is_users
from holdfast.runtime.script.calls import (
    exchange_generator,
    is_in_training,
    seed_script,
    stand_in,
)
from holdfast.runtime.script.modules import OwnFiles, run_as_begun
from holdfast.runtime.script.overlay import PrivateFolder
from holdfast.runtime.script.process import ScriptProcess, run_script_in
from holdfast.runtime.script.saves import share_caches, share_checkpoints
from holdfast.runtime.system.worker_status import Phase
from holdfast.runtime.worker import worker
from holdfast.runtime.worker.context import (
    Refusal,
    current,
    is_forked,
    training_refused,
    when_all_have_left,
    when_script_has_ended,
)
from holdfast.runtime.worker.stacks import Frame

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
    if loader is not None:  # in another release of TensorFlow the files stay until the process ends
        stand_in(loader, "load_source", _load_source)


def _load_source(load: Callable[..., Any], source: str, *args: Any, **arguments: Any) -> Any:
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        module, path = load(source, *args, **arguments)
    finally:
        sys.dont_write_bytecode = writes_none
    # Lines without a time of change are never looked up.
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    os.unlink(path)
    return module, path


def leave_out(strategy_class: Any, tell: Callable[[str], None]) -> None:
    """Let ``scope()`` of every strategy change nothing from now on.

    Args:
        strategy_class: ``tf.distribute.Strategy``, from which all strategies come.
        tell: shows one line to the user, when a script enters a scope.
    """

    def scope(plain: Callable[..., Any], strategy: Any) -> contextlib.AbstractContextManager[Any]:
        name = type(strategy).__name__
        if name.startswith("_"):  # TensorFlow's own, for scripts that have none
            return plain(strategy)  # type: ignore[no-any-return]
        tell(
            f"the scope of {name} is left out: the workers of holdfast share each "
            "batch, and its size is the global one (--no-fit leaves scopes alone)"
        )
        return contextlib.nullcontext(strategy)

    stand_in(strategy_class, "scope", scope)


def leave_out_cluster(resolver_class: Any, tell: Callable[[str], None]) -> None:
    """Let the cluster of ``TF_CONFIG`` be empty from now on, as on a machine without one.

    Args:
        resolver_class: ``tf.distribute.cluster_resolver.TFConfigClusterResolver``.
        tell: shows one line to the user, when a strategy asks for the cluster.
    """

    def cluster_spec(plain: Callable[..., Any], resolver: Any) -> Any:
        found = plain(resolver)
        if not found.as_dict():
            return found
        tell(
            "the cluster of TF_CONFIG is left out: the workers are those of holdfast run -n "
            "(--no-fit leaves it alone)"
        )
        return type(found)({})

    stand_in(resolver_class, "cluster_spec", cluster_spec)


@contextlib.contextmanager
def model_only(wanted: int = 1) -> Iterator[Refusal]:
    """Refuse each training of the script that runs meanwhile; number ``wanted`` ends it."""
    when_imported("tensorflow", lambda: None, without_log_lines)
    when_imported("keras", _refuse_training)
    with training_refused(wanted) as refusal:
        try:
            yield refusal
        finally:
            keras = sys.modules.get("keras")
            if keras is not None and "fit" in vars(keras.Model):
                del keras.Model.fit  # Keras's own is inherited


def _refuse_training() -> None:
    from holdfast.runtime.keras import keras_fit

    keras_fit.take_over()


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
        config.options.run_dir,
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
    seed_script(config.record.seed, config.record.draw_seed or config.record.run_id, path)
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

    graphs.set_threads(config.record.threads)
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
    from holdfast.runtime.training.stages import stages_of_script

    keras_fit.prepare(config)
    if config.options.fit:
        stages = stages_of_script()
        watch_loops(lambda: stages.has_begun, stages.context.notify)


def watch_loops(has_trained: Callable[[], bool], tell: Callable[[str], None]) -> None:
    """Refuse loops of this process's script from now on.

    Args:
        has_trained: returns whether a ``fit`` of the script has begun.
        tell: shows one line to the user.
    """
    steps = _OwnSteps(has_trained, tell)
    kinds = sys.modules["keras"].optimizers.Optimizer.__mro__
    kind = next(kind for kind in kinds if "apply" in vars(kind))
    stand_in(kind, "apply", _outside(steps.apply))
    stand_in(type(sys.modules["tensorflow"].function(tuple)), "__call__", _outside(steps.call))


def _outside(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls ``method`` outside of trainings; others are left alone."""

    def call(plain: Callable[..., Any], own: Any, *args: Any, **arguments: Any) -> Any:
        if is_in_training() or is_forked():
            return plain(own, *args, **arguments)
        return method(functools.partial(plain, own, *args, **arguments), own)

    return call


_MOST_STEPS = 100
"""More are no warm-up, if nobody sees a ``fit``."""


class _OwnSteps:
    """The steps of optimizers outside of ``fit``."""

    def __init__(self, has_trained: Callable[[], bool], tell: Callable[[str], None]) -> None:
        self._has_trained = has_trained
        self._tell = tell
        self._limit: float = 1
        """Steps of one optimizer that pass without a word, infinite once all is said."""
        self._steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._traced: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()
        self._found: list[Any] = []
        self._refusal: ProgramError | None = None

    def apply(self, plain: Callable[[], Any], optimizer: Any) -> Any:
        """Stand for ``Optimizer.apply``."""
        tensorflow = sys.modules["tensorflow"]
        if tensorflow.executing_eagerly():
            self._count([optimizer])
        elif _is_in_loop(tensorflow.compat.v1.get_default_graph()):
            self._count([optimizer, optimizer])
        if not tensorflow.executing_eagerly():
            self._found.append(optimizer)
        return plain()

    def call(self, plain: Callable[[], Any], function: Any) -> Any:
        """Stand for a call of a function of TensorFlow."""
        if not sys.modules["tensorflow"].executing_eagerly():
            return plain()
        known = self._traced.setdefault(function, WeakSet())
        self._count(known)
        self._found.clear()
        try:
            return plain()
        except Exception:  # one that comes through a tracing gets other words
            if self._refusal is not None:
                raise self._refusal from None
            raise
        finally:
            new = {optimizer for optimizer in self._found if optimizer not in known}
            self._count(optimizer for optimizer in new if optimizer not in self._steps)
            known.update(new)

    def _count(self, optimizers: Iterable[Any]) -> None:
        for optimizer in optimizers:
            self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
            if self._steps[optimizer] > self._limit:
                self._act()

    def _act(self) -> None:
        """Refuse a loop, or tell of it once."""
        place, is_of_keras = _place()
        how = "over train_on_batch()" if is_of_keras else "of its own with a GradientTape"
        loop = f"the script trains in a loop {how} ({place})"
        is_first, end = self._limit == 1, ""
        if self._has_trained() or (not is_of_keras and any(map(calls_fit, _sources()))):
            self._limit = math.inf
        elif is_first and not is_of_keras and _has_library_of_keras():
            self._limit = _MOST_STEPS
            end = f"; without a fit it is refused after {_MOST_STEPS} calls of its step"
        else:
            self._refusal = ProgramError(
                f"{loop}, which workers cannot share and no checkpoint can save: let model.fit(x, "
                "y, batch_size=...) run the loop, with a train_step of the model's own if it needs "
                "one, or run the script with plain python"
            )
            raise self._refusal
        if is_first:
            self._tell(
                f"{loop}: each worker does so alone, shares nothing and saves nothing; "
                f"model.fit(...), or holdfast.fit(model, ...), trains together{end}"
            )


def _is_in_loop(graph: Any) -> bool:
    """Return whether a graph is the body of a loop, perhaps over a dataset."""
    while graph is not None:
        name = str(getattr(graph, "name", ""))
        if type(graph).__name__.startswith("While") or name.startswith("Dataset_"):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def _place() -> tuple[str, bool]:
    """Return the script's innermost call, and whether ``train_on_batch`` is what it calls."""
    is_of_keras = False
    for frame, line in traceback.walk_stack(None):
        call = Frame(frame.f_code.co_filename, str(line), frame.f_code.co_name)
        is_of_keras |= call.name == "train_on_batch"
        if call.is_users and "__autograph" not in call.file:  # what TensorFlow has made of it
            return call.short, is_of_keras
    return "in a thread", is_of_keras


_WITH_TERMS = re.compile(
    r"\b(?:fit|search)\((?:[^()]|\([^()]*\))*\b(?:epochs|callbacks|verbose|batch_size)="
)
_OF_A_TUNER = re.compile(r"tuner\.search\b")
_FIT = re.compile(r"\.fit\b")


def calls_fit(source: str) -> bool:
    """Return whether a source seems to train by Keras's ``fit``, a ``Trainer`` or a tuner.

    Functions of its own and scikit-learn have a ``fit``, too.
    """
    is_own = "def fit(" in source and "super().fit(" not in source
    has_terms = _WITH_TERMS.search(source) is not None
    is_other = "sklearn" in source and not has_terms
    has_trainer = "Trainer(" in source and "holdfast" in source
    has_tuner = _OF_A_TUNER.search(source) or (".search(" in source and has_terms)
    has_fit = _FIT.search(source) and not is_own and not is_other
    return bool(has_trainer or has_tuner or has_fit)


def _sources() -> Iterator[str]:
    """Yield the texts of the script, and of the modules that are neither a library's nor ours."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        is_there = file.endswith(".py") and os.path.isfile(file)  # else TensorFlow has made it
        if is_there and Frame(file, "", "").is_users:
            yield Path(file).read_text(encoding="utf-8", errors="replace")


_WITHOUT_FIT = frozenset({"keras", "tensorflow", "tensorboard", "holdfast"})
"""Packages of which none calls ``fit`` that the script does not call."""


def _has_library_of_keras() -> bool:
    """Return whether a library is there, beside ours, that uses Keras: it may call ``fit``."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        place = Frame(file, "", "")
        is_known = name.partition(".")[0] in _WITHOUT_FIT or place.is_holdfasts
        is_library = os.path.isfile(file) and not is_known and not place.is_users
        if is_library and any(map(_is_of_keras, list(vars(module).values()))):
            return True
    return False


def _is_of_keras(value: object) -> bool:
    """Return whether a global of a module is one of Keras's or TensorFlow's modules or classes."""
    if isinstance(value, ModuleType):
        name = str(vars(value).get("__name__"))
    elif isinstance(value, type):
        name = str(value.__module__)
    else:
        return False
    return name.partition(".")[0] in ("keras", "tensorflow")
