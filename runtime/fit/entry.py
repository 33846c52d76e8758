"""The entry of a worker whose script may call Keras's ``fit``."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

from holdfast.runtime.fit import generated_code
from holdfast.runtime.fit.dataset_caches import share_caches
from holdfast.runtime.fit.directories import SharedDirectories, share_directories
from holdfast.runtime.fit.import_watch import when_imported
from holdfast.runtime.fit.script_files import ScriptFiles, is_first, scratch
from holdfast.runtime.fit.script_stores import watch_stores
from holdfast.runtime.fit.strategy_scopes import leave_out, leave_out_cluster
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker import worker
from holdfast.runtime.worker.calling_script import CallingScript
from holdfast.runtime.worker.context import when_all_have_left
from holdfast.runtime.worker.script_clock import ScriptClock, share_clock
from holdfast.runtime.worker.script_draws import exchange_generator, seed_script


def main(config: WorkerConfig, control_fd: int, heartbeat_fd: int) -> NoReturn:
    """Run the worker that ``config`` describes, in a fresh process of the pool."""
    # No worker runs its script before all have come here.  Later launches find what the first made.
    began = time.time() if config.generation == 1 else 0.0
    worker.main(config, control_fd, heartbeat_fd, lambda config: prepare(config, began))


def prepare(config: WorkerConfig, began: float = 0.0) -> None:
    """Give the script the same numbers, names and directories on every worker, and our ``fit``."""
    path = config.options.script.resolve()
    run = RunDirectory(config.run_dir.resolve())
    record = ScriptRecord(run.script_record_path)
    script = CallingScript(path)
    share_clock(ScriptClock(record, script))
    directories = SharedDirectories(record, script, config.run_dir, began, is_first)
    share_directories(directories)
    when_all_have_left(directories.temporary.remove)
    kept = run.loaded_path
    files = ScriptFiles(record, script, config.run_dir, is_first, scratch, kept)
    files.is_apart = directories.temporary.is_apart
    directories.when_written.append(files.forget)
    directories.logs.append(files)
    files.share()
    stores = watch_stores(script)
    when_imported("sqlite3", lambda: stores.share(sys.modules["sqlite3"]))
    seed_script(config.seed, config.draw_seed or config.run_id, path)
    when_imported("tensorflow", lambda: _prepare_tensorflow(config))
    when_imported("keras", lambda: _take_over(config))


def _prepare_tensorflow(config: WorkerConfig) -> None:
    """Fix the numerics of TensorFlow before the script uses it; leave out scopes and files."""
    from holdfast.runtime.model import tensorflow_settings
    from holdfast.runtime.training.stages import stages_of_script

    tensorflow_settings.set_threads(config.threads)
    generated_code.keep_in_memory()
    exchange_generator(sys.modules["tensorflow"].random.Generator)
    if config.options.fit:
        stages, context = stages_of_script(), stages_of_script().context
        context.at_end.append(
            share_caches(sys.modules["tensorflow"], config, lambda: stages.workers)
        )
        distribute, tell = sys.modules["tensorflow"].distribute, context.inform
        leave_out(distribute.Strategy, tell)
        leave_out_cluster(distribute.cluster_resolver.TFConfigClusterResolver, tell)


def _take_over(config: WorkerConfig) -> None:
    """Make ``keras.Model.fit`` the collective, unless the user wants it left alone."""
    from holdfast.runtime.fit import keras_fit

    keras_fit.prepare(config)
