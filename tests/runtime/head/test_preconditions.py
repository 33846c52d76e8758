"""What must hold before a job starts: a sentence with its remedy for each thing that does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.head.preconditions import (
    ScriptSource,
    Surroundings,
    Wishes,
    faults,
    refuse_faults,
    surroundings,
)
from holdfast.runtime.system.channel import Loopback

JAX = {"backend": "KERAS_BACKEND is jax", "backend_remedy": "`export KERAS_BACKEND=tensorflow`"}


@pytest.mark.parametrize(
    ("found", "wishes", "words"),
    [
        (Surroundings(), Wishes(workers=8), None),
        (Surroundings(Loopback.IS_DOWN), Wishes(), "lo is down: `ip link set lo up`"),
        (Surroundings(Loopback.HAS_NO_ADDRESS), Wishes(), "`ip addr add 127.0.0.1/8 dev lo`"),
        (Surroundings(most_files=38), Wishes(workers=2), "may open 38 files, and the agent of 2"),
        (Surroundings(most_files=39), Wishes(workers=2), None),
        (Surroundings(most_files=-1), Wishes(workers=2), None),
        (
            Surroundings(most_bytes=10_000 * 1024),
            Wishes(workers=2),
            r"files of 9.8 MiB, and MPI has one of 16.0 MiB: raise .*`ulimit -f unlimited`",
        ),
        (Surroundings(most_bytes=16 << 20), Wishes(), None),
        (Surroundings(most_bytes=-1), Wishes(), None),
        (
            Surroundings(hidden={"mpi4py": "/home/u/lib/mpi4py.py"}),
            Wishes(),
            "take /home/u/lib out of PYTHONPATH",
        ),
        (
            Surroundings(threads_of="/site/sitecustomize.py"),
            Wishes(),
            "^/site/sitecustomize.py sta",
        ),
        (Surroundings(**JAX), Wishes(), "^KERAS_BACKEND is jax, and holdfast trains with Tensor"),
        (Surroundings(**JAX), Wishes(backend="tensorflow"), None),
        (Surroundings(), Wishes(backend="torch"), "^the script sets KERAS_BACKEND to torch, and"),
    ],
)
def test_each_fault_has_a_sentence_with_its_remedy(
    found: Surroundings, wishes: Wishes, words: str | None
) -> None:
    if words is None:
        refuse_faults(found, wishes)
        return
    (sentence,) = faults(found, wishes)
    with pytest.raises(UsageError, match=words) as error:
        refuse_faults(found, wishes)
    assert str(error.value) == sentence


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

    found = surroundings({"HOME": str(tmp_path), **variables})

    assert found.backend.endswith(words)
    assert bool(found.backend) == bool(words)


def test_only_a_file_in_pythonpath_hides_a_package(tmp_path: Path) -> None:
    site = next(place for place in sys.path if (Path(place) / "numpy/__init__.py").exists())
    (tmp_path / "h5py.py").write_text("")

    assert surroundings({"PYTHONPATH": site}).hidden == {}
    found = surroundings({"PYTHONPATH": f"{tmp_path}:{site}"}).hidden
    assert found == {"h5py": str(tmp_path / "h5py.py")}


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
        "from holdfast.runtime.head.preconditions import surroundings\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(surroundings(os.environ).threads_of)"
    )

    said = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert said.strip() == (str(customize) if starts else "")
