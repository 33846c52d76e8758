"""``holdfast.launch``: a job from Python, its value, its metrics, its errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import UsageError, launch
from holdfast.runtime.launch.command import command_of, fields_of
from holdfast.runtime.launch.launched_function import Call

PROGRAM = """
import holdfast

slope = 3

def work(offset, fails=False):
    if fails:
        raise LookupError("no data", offset)
    try:
        holdfast.launch("other.py")
    except holdfast.ProgramError as error:
        refused = str(error)
    import keras, numpy
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    ones = numpy.ones((4, 2), "float32")
    history = model.fit(ones, ones[:, :1], batch_size=4, epochs=2, verbose=0)
    return slope * 4 + offset, history.history["loss"], refused

result = holdfast.launch(work, 1, n=2, run_dir="run", quiet=True)
total, losses, refused = result.value
print(result.exit_code, result.run_dir.name, total, losses == result.history["loss"], refused)
try:
    holdfast.launch(work, 2, True, n=2, run_dir="failing", preload="", quiet=True)
except LookupError as error:
    print(error.args, "in work" in str(error.__cause__))
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrokers": 2}, r"launch\(\) has no option 'wrokers'; did you mean workers\?"),
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


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"script .*none\.py does not exist"):
        launch(tmp_path / "none.py")


def test_a_function_that_cannot_travel_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, pytest.raises(UsageError, match=r"cannot send print"):
        launch(print, log, run_dir=tmp_path / "run")


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
def test_a_program_without_a_file_gets_the_value_and_the_error_of_its_function(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=PROGRAM, cwd=tmp_path, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    value, error = done.stdout.splitlines()
    assert value.startswith("0 run 13 True holdfast.launch() was called in a worker of a job;")
    assert error == "('no data', 2) True"


def test_run_of_another_call_is_refused_by_name(tmp_path: Path) -> None:
    """Its training would be restored, and its value be taken for that of this call."""
    first, other = Call.of(print, ("a",)), Call.of(print, ("b",))
    script = first.write(tmp_path, is_fresh=False)
    (tmp_path / "RUN.json").touch()

    assert first.write(tmp_path, is_fresh=False) == script
    with pytest.raises(UsageError, match=r"holds the run of another call.*fresh=True"):
        other.write(tmp_path, is_fresh=False)
    assert other.write(tmp_path, is_fresh=True) != script
    assert first.digest != other.digest
