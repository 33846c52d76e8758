"""What a worker prepares before the first line of its script, without importing what that may."""

from __future__ import annotations

import builtins
import io
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from configs import worker_config

from holdfast.runtime.fit import script_setup
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.worker import script_draws

NUMPY_SEEDS = 1 << 32


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What waits for an import, by the module; numbers and Python's functions are put back."""
    states = random.getstate(), np.random.get_state()
    found: dict[str, Any] = {}
    functions = {
        os: ("mkdir", "remove", "unlink"),
        shutil: ("rmtree",),
        tempfile: ("mkdtemp",),
        builtins: ("open",),
        io: ("open",),
    }
    for module, names in functions.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(script_setup, "share_clock", lambda _: None)
    monkeypatch.setattr(script_draws, "draw_alike", lambda seed, script: None)
    monkeypatch.setattr(
        script_setup, "when_imported", lambda name, then: found.update({name: then})
    )
    yield found
    random.setstate(states[0])
    np.random.set_state(states[1])


def drawn(config: WorkerConfig) -> tuple[float, float]:
    """Return the first random numbers of a script."""
    script_setup.prepare(config)
    return random.random(), float(np.random.random())


def test_scripts_of_all_workers_draw_the_same_numbers() -> None:
    one, other = (worker_config(worker, (0, 1), seed=5) for worker in (0, 1))

    assert drawn(one) == drawn(other)


def test_another_seed_gives_other_numbers_to_python_and_to_numpy() -> None:
    five, six = drawn(worker_config(seed=5)), drawn(worker_config(seed=6))

    assert five[0] != six[0]
    assert five[1] != six[1]


@pytest.mark.parametrize("seed", [NUMPY_SEEDS - 1, NUMPY_SEEDS, (1 << 63) + 5])
def test_seed_that_is_too_large_for_numpy_is_taken_modulo_its_seeds(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % NUMPY_SEEDS)
    expected = random.random(), float(np.random.random())

    assert drawn(worker_config(seed=seed)) == expected


def test_heavy_libraries_wait_for_the_script(watched: dict[str, Any]) -> None:
    script_setup.prepare(worker_config())

    assert list(watched) == ["sqlite3", "tensorflow", "keras"]


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
    monkeypatch.setattr(script_setup.generated_code, "keep_in_memory", lambda: kept.append(True))
    monkeypatch.setattr(script_setup, "leave_out", lambda *arguments: left_out.append(arguments))
    monkeypatch.setattr(script_setup, "share_caches", lambda *_: lambda: None)
    monkeypatch.setattr(stages, "stages_of_script", lambda: context)
    script_setup.prepare(worker_config(fit=fit))

    watched["tensorflow"]()

    assert (threads, kept) == ([1], [True])
    assert left_out == ([(tf.distribute.Strategy, print)] if fit else [])
