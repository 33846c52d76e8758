"""What a worker is told at its start: it comes over the wire as it was, or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from configs import worker_config
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.signature import KeyFile
from holdfast.recovery.schedule import FailureHistory
from holdfast.runtime.options.worker_config import WorkerConfig

_HISTORIES = st.builds(
    FailureHistory,
    st.floats(0.0, 1e9),
    st.integers(0, 1000),
    st.lists(st.integers(0, 1 << 40), max_size=4).map(tuple),
)


@given(
    workers=st.lists(st.integers(0, 1 << 30), min_size=1, max_size=5, unique=True),
    generation=st.integers(0, (1 << 63) - 1),
    seed=st.integers(0, 1 << 70),
    history=_HISTORIES,
)
def test_configuration_comes_over_the_wire_as_it_was(
    workers: list[int], generation: int, seed: int, history: FailureHistory
) -> None:
    made = worker_config(workers[0], workers, generation=generation, seed=seed)
    config = replace(made, history=history)

    assert WorkerConfig.decode(config.encode()) == config


def test_configuration_is_one_line_whatever_the_script_is_called() -> None:
    config = worker_config(script=Path("a\nb.py"), argv=("x\ny",), key_file=KeyFile("/k\n", "00"))

    assert "\n" not in config.encode()
    assert WorkerConfig.decode(config.encode()) == config


def test_spares_are_the_workers_beyond_the_capacity() -> None:
    config = worker_config(4, (4, 5, 6), capacity=2, run_dir=Path("/scratch/run"))

    assert (config.capacity, len(config.workers) - config.capacity) == (2, 1)
    assert config.run_dir == Path("/scratch/run")


def test_history_of_an_older_holdfast_has_rejected_nothing() -> None:
    fields = worker_config().to_json() | {"history": {"seconds": 2.0, "failures": 1}}

    assert WorkerConfig.from_json(fields).history == FailureHistory(2.0, 1, ())


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"workers": [0, 0]}, ValueError, r"workers are \[0, 0\]"),
        ({"generation": -1}, ValueError, "generation is -1"),
        ({"generation": 1 << 63}, ValueError, f"generation is {1 << 63}"),
        ({"seed": True}, TypeError, "are not all whole numbers"),
        ({"threads": 1.0}, TypeError, "are not all whole numbers"),
        ({"more": 1}, TypeError, "more"),
        ({"history": {"luck": 1}}, TypeError, "luck"),
        ({"options": [1]}, TypeError, r"options are \[1\]"),
        ({"options": "text"}, TypeError, "options are 'text'"),
        ({"generation": "1"}, TypeError, "are not all whole numbers"),
        ({"worker": None}, TypeError, "are not all whole numbers"),
        ({"workers": ["0"]}, TypeError, "are not all whole numbers"),
        ({"workers": [[0]]}, TypeError, "are not all whole numbers"),
        ({"workers": 1}, TypeError, "int"),
        ({"key_file": "path"}, TypeError, "mapping"),
    ],
)
def test_configuration_that_makes_no_sense_is_refused_with_the_reason(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        WorkerConfig.from_json(worker_config().to_json() | change)


@pytest.mark.parametrize("generation", [0, (1 << 63) - 1])
def test_first_and_last_generation_are_taken(generation: int) -> None:
    fields = worker_config().to_json() | {"generation": generation}

    assert WorkerConfig.from_json(fields).generation == generation


@pytest.mark.parametrize("name", ["options", "key_file", "workers", "generation", "history"])
def test_configuration_without_one_of_its_parts_is_refused(name: str) -> None:
    fields = worker_config().to_json()
    del fields[name]

    with pytest.raises(KeyError, match=name):
        WorkerConfig.from_json(fields)
