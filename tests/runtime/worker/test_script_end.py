"""How a worker reports the end of its script."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from configs import worker_config

from holdfast.runtime.errors import UsageError
from holdfast.runtime.evidence.stacks import MOST_CHARACTERS
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.heartbeat import HeartbeatPage, Phase
from holdfast.runtime.worker import context as contexts
from holdfast.runtime.worker.worker import run_script

TRAINED = (Phase.STARTING, Phase.CONCLUDING)
TRAINING = (Phase.RESTORING, Phase.COMPILING, Phase.TRAINING, Phase.SAVING, Phase.REPAIRING)


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(contexts, "_planned_steps", 390)
    monkeypatch.setattr(contexts, "_failure", None)


def page_in(phase: Phase = Phase.STARTING) -> HeartbeatPage:
    page = HeartbeatPage.create()
    page.phase = phase
    page.resume(59)
    return page


def end_of(folder: Path, text: str, phase: Phase) -> Any:
    script = folder / "train.py"
    script.write_text(text)
    return run_script(worker_config(script=script), page_in(phase))


@pytest.mark.parametrize("phase", TRAINED)
@pytest.mark.parametrize("text", ["", "import sys; sys.exit()", "raise SystemExit(0)"])
def test_script_that_ends_well_out_of_training_is_done(
    tmp_path: Path, text: str, phase: Phase
) -> None:
    assert end_of(tmp_path, text, phase) is None


@pytest.mark.parametrize("phase", TRAINING)
@pytest.mark.parametrize("text", ["", "import sys; sys.exit()", "raise SystemExit(0)"])
def test_script_that_ends_well_in_mid_training_has_failed(
    tmp_path: Path, text: str, phase: Phase
) -> None:
    report = end_of(tmp_path, text, phase)

    assert (report["type"], report["exit_code"]) == ("SystemExit", 1)
    assert report["message"] == "the script ended at step 59 of 390, before training was over"


@pytest.mark.parametrize("text", ["'no data in /data'", "Path('no data in /data')"])
def test_words_that_the_script_exits_with_are_its_error(tmp_path: Path, text: str) -> None:
    report = end_of(tmp_path, f"import sys\nfrom pathlib import Path\nsys.exit({text})", TRAINED[0])

    assert (report["type"], report["exit_code"]) == ("SystemExit", 1)
    assert report["message"] == "no data in /data"
    assert report["traceback"] == ""


def test_number_that_the_script_exits_with_is_told(tmp_path: Path) -> None:
    report = end_of(tmp_path, "import sys\nsys.exit(3)", TRAINED[0])

    assert (report["message"], report["exit_code"]) == (
        "the script ended itself with exit code 3",
        1,
    )


CAUGHT = (
    "from holdfast.runtime import errors\n"
    "from holdfast.runtime.worker import context, injector\n"
    "def fit():\n"
    "    error = {error}\n"
    "    context.fail(error)\n"
    "    raise error\n"
    "try:\n"
    "    fit()\n"
    "except {what}:\n"
    "    {then}\n"
)
ENDS = ("pass", "import sys; sys.exit(0)", "import sys; sys.exit(3)", "raise OSError('later')")


@pytest.mark.parametrize("then", ENDS)
def test_stop_that_the_script_has_caught_is_still_a_stop(tmp_path: Path, then: str) -> None:
    text = CAUGHT.format(error="errors.StopRequested('stop')", what="BaseException", then=then)

    assert end_of(tmp_path, text, Phase.CONCLUDING) is None


def test_stop_is_not_caught_with_every_exception(tmp_path: Path) -> None:
    then = "pathlib.Path(__file__).with_name('went on').touch()"
    text = "import pathlib\n" + CAUGHT.format(
        error="errors.StopRequested('stop')", what="Exception", then=then
    )

    assert end_of(tmp_path, text, Phase.CONCLUDING) is None
    assert not (tmp_path / "went on").exists()


@pytest.mark.parametrize("then", ENDS)
@pytest.mark.parametrize(
    ("module", "kind", "code"),
    [
        ("errors", "WorldLost", 70),
        ("errors", "StoppedEarly", 75),
        ("errors", "UsageError", 2),
        ("injector", "InjectedFault", 1),
    ],
)
def test_end_that_the_job_has_decided_is_told_though_the_script_has_caught_it(
    tmp_path: Path, module: str, kind: str, code: int, then: str
) -> None:
    text = CAUGHT.format(error=f"{module}.{kind}('why')", what="BaseException", then=then)

    report = end_of(tmp_path, text, Phase.FAILED)

    assert (report["type"], report["message"], report["exit_code"]) == (kind, "why", code)


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("pass", "ValueError"),
        ("import sys; sys.exit(0)", "ValueError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("raise OSError('later')", "OSError"),
    ],
)
def test_training_that_failed_is_no_success_though_the_script_has_caught_it(
    tmp_path: Path, then: str, told: str
) -> None:
    text = CAUGHT.format(error="ValueError('a trial')", what="ValueError", then=then)

    report = end_of(tmp_path, text, Phase.FAILED)

    assert (report["type"], report["exit_code"]) == (told, 1)
    if told == "ValueError":
        assert report["where"] == "fit (train.py:6)"


def test_end_of_a_script_comes_before_its_report_and_in_its_own_main(tmp_path: Path) -> None:
    """A thread may still train, and a process may still ask for a function of the script."""
    seen: list[object] = []
    page = page_in(Phase.TRAINING)

    def finish(error: BaseException | None) -> None:
        seen.extend([error, sys.modules["__main__"].__file__])
        page.phase = Phase.CONCLUDING

    script = tmp_path / "train.py"
    script.write_text("")

    assert run_script(worker_config(script=script), page, finish=finish) is None
    assert seen == [None, str(script)]


@pytest.mark.parametrize(
    ("error", "heard"), [("OSError('full')", ["OSError"]), ("SystemExit(3)", [])]
)
def test_hook_of_the_script_for_its_errors_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, heard: list[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    text = (
        "import pathlib, sys\nhere = pathlib.Path(__file__).parent\n"
        "sys.excepthook = lambda kind, error, trace: (here / kind.__name__).touch()\n"
        f"raise {error}\n"
    )

    end_of(tmp_path, text, Phase.CONCLUDING)

    assert sorted(path.name for path in tmp_path.iterdir()) == [*heard, "train.py"]


def test_exit_in_mid_training_comes_with_its_place(tmp_path: Path) -> None:
    text = "import sys\ndef contribute():\n    sys.exit(0)\ncontribute()\n"

    report = end_of(tmp_path, text, Phase.TRAINING)

    assert report["where"] == "contribute (train.py:3)"
    assert 'train.py", line 4, in <module>' in report["traceback"]


def test_error_names_the_innermost_call_of_the_user(tmp_path: Path) -> None:
    text = "import json\ndef read():\n    json.loads('{')\nread()\n"

    report = end_of(tmp_path, text, Phase.TRAINING)

    assert (report["type"], report["where"]) == ("JSONDecodeError", "read (train.py:3)")
    assert "runpy" not in report["traceback"]


def test_traceback_is_bounded_and_keeps_both_ends(tmp_path: Path) -> None:
    report = end_of(tmp_path, "raise ValueError('x' * 100_000 + 'end')", Phase.TRAINING)

    assert len(report["traceback"]) <= MOST_CHARACTERS
    assert report["traceback"].startswith("Traceback")
    assert report["traceback"].endswith("end\n")


def test_script_is_run_as_python_runs_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import pathlib, sys\nassert __name__ == '__main__'\n"
        "seen = pathlib.Path(__file__).with_name('seen')\n"
        "seen.write_text('\\n'.join([sys.path[0], *sys.argv]))\n"
    )

    report = run_script(worker_config(script=script, argv=("--rate", "0.1")), page_in())

    assert report is None
    assert (tmp_path / "seen").read_text().splitlines() == [
        str(tmp_path), str(script), "--rate", "0.1",
    ]  # fmt: skip


def test_worker_is_prepared_before_the_first_line_of_its_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import pathlib\npathlib.Path(__file__).with_name('prepared').unlink()\n")

    def prepare(_: WorkerConfig) -> None:
        (tmp_path / "prepared").touch()

    assert run_script(worker_config(script=script), page_in(), prepare) is None


def test_script_that_cannot_be_prepared_is_not_begun(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import pathlib\npathlib.Path(__file__).with_name('begun').touch()\n")

    def prepare(_: WorkerConfig) -> None:
        raise UsageError("this Keras is too old")

    report: Any = run_script(worker_config(script=script), page_in(), prepare)

    assert (report["type"], report["message"]) == ("UsageError", "this Keras is too old")
    assert not (tmp_path / "begun").exists()


@pytest.mark.parametrize(
    "text",
    [
        "raise ImportError('libcuda is missing', name='tensorflow.python')",
        "exec('raise ImportError(\"libcuda is missing\")', {'__name__': 'keras.src'})",
    ],
    ids=["by name", "within"],
)
def test_tensorflow_that_cannot_be_imported_comes_with_advice(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorflow", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    report = end_of(tmp_path, text, Phase.STARTING)

    assert (report["type"], report["exit_code"]) == ("UsageError", 2)
    assert report["message"].startswith("TensorFlow cannot be imported: libcuda is missing; ins")
    assert report["traceback"] == ""


@pytest.mark.parametrize(
    "text",
    [
        "raise ImportError('cannot import name', name='keras.preprocessing.image')",
        "exec('raise ImportError(\"install pydot\")', {'__name__': 'keras.src.utils'})",
    ],
    ids=["a name that it lacks", "a package that it asks for"],
)
def test_import_error_of_a_keras_that_works_is_the_scripts_error(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorflow", "keras"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))

    report = end_of(tmp_path, text, Phase.STARTING)

    assert (report["type"], report["exit_code"]) == ("ImportError", 1)
    assert report["where"].startswith("<module> (train.py:1)")


def test_other_module_that_is_missing_is_the_scripts_error(tmp_path: Path) -> None:
    report = end_of(tmp_path, "import keras_of_nobody", Phase.STARTING)

    assert (report["type"], report["exit_code"]) == ("ModuleNotFoundError", 1)
    assert report["where"] == "<module> (train.py:1)"


@pytest.mark.parametrize(
    ("phase", "is_in_training"),
    [(phase, True) for phase in (*TRAINING, Phase.FAILED)] + [(phase, False) for phase in TRAINED],
)
def test_report_tells_whether_the_script_was_in_its_training(
    *, tmp_path: Path, phase: Phase, is_in_training: bool
) -> None:
    report = end_of(tmp_path, "raise KeyError('loss')", phase)

    assert report["is_in_training"] == is_in_training
