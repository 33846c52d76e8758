"""``holdfast.launch``: a job from Python, its metrics, its errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import UsageError, launch
from holdfast.runtime.commands.launch import command_of, fields_of

SCRIPT = """
import sys
import holdfast
import keras, numpy
if holdfast.is_first():
    try:
        holdfast.launch("other.py")
    except holdfast.ProgramError as error:
        print("refused:", error, flush=True)
if len(sys.argv) > 1:
    raise LookupError(sys.argv[1])
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("sgd", "mse")
ones = numpy.ones((4, 2), "float32")
model.fit(ones, ones[:, :1], batch_size=4, epochs=2, verbose=0)
"""
PROGRAM = """
import holdfast

for _ in range(2):
    result = holdfast.launch("train.py", n=2, run_dir="run", quiet=True)
    print(result.exit_code, result.run_dir.name, sorted(result.history), len(result.sha256))
try:
    holdfast.launch("train.py", "no data", n=2, run_dir="failing", preload="", quiet=True)
except holdfast.LaunchFailed as error:
    print(error.code, error.run_dir.name, error)
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrokers": 2}, r"launch\(\) has no option 'wrokers'; did you mean workers\?"),
        ({"local_dir": "/tmp"}, "^--local-dir was removed: saves go to the run directory"),
        ({"n": "many"}, r"--workers: 'many' is not a valid integer"),
        ({"n": 0}, r"must be at least 1, got 0"),
        ({"save_every": "often"}, "--save-every"),
    ],
)
def test_wrong_options_are_refused_as_on_the_command_line(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.touch()

    with pytest.raises(UsageError, match=message):
        launch(script, **options)


def test_a_function_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"test_a_function_is_refused is a function: write it into"
    ):
        launch(test_a_function_is_refused)  # type: ignore[arg-type]


def test_options_become_flags() -> None:
    given = fields_of(
        {"n": 4, "shrink": False, "fresh": True, "inject": ["a", "b"], "mca": [("k", "v")]}
        | {"preload": ("one", "two"), "quiet": False, "spares": None}
    )

    line = command_of(Path("train.py"), ("--lr", "1"), given)

    words = "--workers 4 --no-shrink --fresh --inject a --inject b --mca k v --preload one,two"
    assert line[line.index("run") + 1 :] == [*words.split(), "--", "train.py", "--lr", "1"]


@pytest.mark.mpi
@pytest.mark.tensorflow
def test_a_program_gets_metrics_and_digest_of_its_job_and_the_failure_of_another(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-"], input=PROGRAM, cwd=tmp_path, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    refused, *told = done.stdout.splitlines()[:3]
    assert refused.startswith("refused: holdfast.launch() was called in a worker of a job;")
    assert told == ["0 run ['loss'] 64"] * 2
    assert "1 failing the job in" in done.stdout
    assert "LookupError: no data" in done.stdout
