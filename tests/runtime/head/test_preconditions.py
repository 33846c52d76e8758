"""What must hold before a job starts: a sentence with its remedy for each thing that does not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.head.preconditions import (
    ScriptSource,
    _file_size,
    _files,
    _keras,
    _loopback,
    host_faults,
    job_faults,
)
from holdfast.runtime.system.network import Loopback

TENSORFLOW, JAX = {"KERAS_BACKEND": "tensorflow"}, {"KERAS_BACKEND": "jax"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (_loopback(Loopback.WORKS), ""),
        (_loopback(Loopback.IS_DOWN), "lo is down: `ip link set lo up`"),
        (_loopback(Loopback.HAS_NO_ADDRESS), "`ip addr add 127.0.0.1/8 dev lo`"),
        (_files(38, 2), "may open 38 files, and the agent of 2"),
        (_files(39, 2), ""),
        (_files(-1, 2), ""),
        (
            _file_size(10_000 * 1024),
            r"files of 9.8 MiB, and MPI has one of 16.0 MiB: raise .*`ulimit -f unlimited`",
        ),
        (_file_size(16 << 20), ""),
        (_file_size(-1), ""),
        (_keras(JAX, None), "^KERAS_BACKEND is jax, and holdfast trains with TensorFlow: `export"),
        (_keras(JAX, "tensorflow"), ""),
        (_keras(TENSORFLOW, "torch"), "^the script sets KERAS_BACKEND to torch, and .*: let it"),
    ],
)
def test_each_fault_has_a_sentence_with_its_remedy(fault: str, words: str) -> None:
    assert re.search(words, fault)
    assert bool(words) == bool(fault)


def test_job_is_refused_for_what_the_host_and_the_script_have() -> None:
    (fault,) = job_faults(TENSORFLOW, 1, "jax")

    assert "the script sets KERAS_BACKEND to jax" in fault
    assert not list(job_faults(TENSORFLOW))


@pytest.mark.parametrize(
    ("variables", "in_file", "words"),
    [
        ({}, None, ""),
        ({}, "tensorflow", ""),
        ({}, "jax", "keras.json names the backend jax"),
        ({"KERAS_BACKEND": "tensorflow"}, "jax", ""),
        ({"KERAS_BACKEND": "torch"}, "tensorflow", "KERAS_BACKEND is torch"),
    ],
)
def test_backend_is_read_as_keras_reads_it(
    tmp_path: Path, variables: dict[str, str], in_file: str | None, words: str
) -> None:
    if in_file is not None:
        (tmp_path / ".keras").mkdir()
        (tmp_path / ".keras/keras.json").write_text(json.dumps({"backend": in_file}))

    fault = _keras({"HOME": str(tmp_path), **variables}, None)

    assert words in fault
    assert bool(fault) == bool(words)


def test_only_a_file_in_pythonpath_hides_a_package(tmp_path: Path) -> None:
    site = next(place for place in sys.path if (Path(place) / "numpy/__init__.py").exists())
    (tmp_path / "h5py.py").write_text("")

    assert not list(host_faults({"PYTHONPATH": site}))
    (fault,) = host_faults({"PYTHONPATH": f"{tmp_path}:{site}"})
    assert f"hides the package h5py: {tmp_path / 'h5py.py'} is found first" in fault
    assert fault.endswith(f"rename that file, or take {tmp_path} out of PYTHONPATH")


@pytest.mark.parametrize(
    ("text", "backend", "uses_keras"),
    [
        ("import numpy", None, False),
        ("import keras", None, True),
        ("import tensorflow as tf\ntf.keras", None, True),
        ("import tensorflow as tf", None, False),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras", "jax", True),
        ("import os, keras\nos.environ.setdefault('KERAS_BACKEND', 'torch')", "torch", True),
        ("import keras as", None, False),
    ],
)
def test_script_says_which_backend_it_wants(
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    backend: str | None,
    uses_keras: bool,  # noqa: FBT001
) -> None:
    monkeypatch.delenv("KERAS_BACKEND", raising=False)

    source = ScriptSource.of(text.encode())

    assert (source.backend, source.uses_keras) == (backend, uses_keras)
    assert source.variables == ({} if backend is None else {"KERAS_BACKEND": backend})


@pytest.mark.process
@pytest.mark.parametrize("starts", [True, False])
def test_thread_that_python_starts_by_itself_is_found_with_its_file(
    tmp_path: Path,
    starts: bool,  # noqa: FBT001
) -> None:
    customize = tmp_path / "sitecustomize.py"
    customize.write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        if starts
        else "import threading\n"
    )
    program = (
        "import os, threading\n"
        "from holdfast.runtime.head.preconditions import host_faults\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(*host_faults(os.environ))"
    )

    said = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert said.startswith(f"{customize} starts a thread") if starts else said == "\n"
