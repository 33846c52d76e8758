"""Whatever a plain ``fit`` calls of what a script overrides is called here too, on all workers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing import run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts" / "pipelines"
OPTIONS = ("--threads", "1", "--heartbeat-timeout", "30")

OF_STEP = ("Model.train_step", "Model.test_step", "Model.trainable_weights", "Optimizer.scale_loss")
"""Only the second model overrides these; Keras's own step runs as it stands then."""
REFUSED = ("Model.distribute_strategy", "Model.evaluate")
"""Each with its sentence in tests/runtime/model/custom/test_own_hooks.py."""
CALLED = (
    *("Callback.on_batch_begin", "Callback.on_batch_end", "Callback.on_epoch_begin"),
    *("Callback.on_epoch_end", "Callback.on_test_batch_begin", "Callback.on_test_batch_end"),
    *("Callback.on_test_begin", "Callback.on_test_end", "Callback.on_train_batch_begin"),
    *("Callback.on_train_batch_end", "Callback.on_train_begin", "Callback.on_train_end"),
    *("Callback.set_model", "Callback.set_params", "Constraint.__call__", "Layer.__call__"),
    *("Layer.add_weight", "Layer.build", "Layer.call", "Layer.compute_dtype", "Layer.input_dtype"),
    *("Layer.input_spec", "Layer.metrics", "Layer.quantization_mode", "Layer.supports_masking"),
    *("Layer.trainable", "Layer.variable_dtype", "Layer.weights", "LearningRateSchedule.__call__"),
    *("Loss.__call__", "Loss.call", "Loss.dtype", "Metric.dtype", "Metric.reset_state"),
    *("Metric.result", "Metric.update_state", "Model.__call__", "Model.add_loss", "Model.call"),
    *("Model.compute_dtype", "Model.compute_loss", "Model.compute_metrics", "Model.dtype_policy"),
    *("Model.fit", "Model.get_metrics_result", "Model.input_dtype", "Model.input_spec"),
    *("Model.jit_compile", "Model.losses", "Model.make_test_function"),
    *("Model.make_train_function", "Model.metrics", "Model.quantization_mode"),
    *("Model.reset_metrics", "Model.run_eagerly", "Model.supports_masking", "Model.trainable"),
    *("Model.variable_dtype", "Model.weights", "Optimizer.add_optimizer_variables"),
    *("Optimizer.add_variable", "Optimizer.add_variable_from_reference", "Optimizer.apply"),
    *("Optimizer.apply_gradients", "Optimizer.assign", "Optimizer.assign_add", "Optimizer.build"),
    *("Optimizer.finalize_variable_values", "Optimizer.iterations", "Optimizer.learning_rate"),
    *("Optimizer.update_step", "PyDataset.__getitem__", "PyDataset.num_batches"),
    *("PyDataset.on_epoch_begin", "PyDataset.on_epoch_end", "PyDataset.use_multiprocessing"),
    *("PyDataset.workers", "Regularizer.__call__"),
)

Told = dict[str, dict[str, list[str]]]


def told(stdout: str) -> Told:
    found: Told = {"SEEN": {}, "LOSS": {}}
    for line in stdout.splitlines():
        kind, *rest = line.split(" ", 2)
        if kind in found:
            found[kind][rest[0]] = json.loads(rest[1])
    return found


def in_plain_python(script: Path, *arguments: str) -> str:
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.fixture(scope="module")
def plain() -> Told:
    """What Keras calls by itself."""
    return told(in_plain_python(SCRIPTS / "overrides.py", "all"))


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What the first of two workers calls."""
    run_dir = tmp_path_factory.mktemp("overrides") / "run"
    job = run_job(SCRIPTS / "overrides.py", run_dir=run_dir, workers=2, options=OPTIONS)
    assert job.exit_code == 0, job.stderr
    return told(job.stdout)


def test_table_has_all_that_keras_calls(plain: Told) -> None:
    assert set(plain["SEEN"]["own"]) == {*CALLED, *REFUSED, *OF_STEP}
    assert set(plain["SEEN"]["plain"]) == {*CALLED, *REFUSED}


@pytest.mark.parametrize("name", CALLED)
def test_what_keras_calls_is_called(ours: Told, name: str) -> None:
    assert name in ours["SEEN"]["plain"]
    assert name in ours["SEEN"]["own"]


@pytest.mark.parametrize("name", OF_STEP)
def test_step_that_is_the_scripts_runs_as_it_stands(ours: Told, name: str) -> None:
    assert name in ours["SEEN"]["own"]


def test_figures_are_those_of_plain_keras(plain: Told, ours: Told) -> None:
    for how in ("plain", "own"):
        assert ours["LOSS"][how] == {
            name: pytest.approx(values, rel=1e-5) for name, values in plain["LOSS"][how].items()
        }
