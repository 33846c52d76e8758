"""A worker's life: how it leaves, how it reports the end of its script, and what it does then."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest
from configs import journal_of, without_faults, worker_config
from local_communicator import LocalCommunicator

from holdfast.recovery.world import WorkerId
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.events import Notice
from holdfast.runtime.system.channel import Channel, to_message
from holdfast.runtime.system.worker_status import Phase, WorkerLeaving, WorkerStatus
from holdfast.runtime.worker import context as contexts
from holdfast.runtime.worker import worker as worker_module
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.stacks import MOST_CHARACTERS
from holdfast.runtime.worker.worker import main, run_script

TRAINED = (Phase.STARTING, Phase.CONCLUDING)
TRAINING = (Phase.RESTORING, Phase.COMPILING, Phase.TRAINING, Phase.SAVING, Phase.REPAIRING)
LEAVES_WORK = """
import atexit, concurrent.futures, gzip, multiprocessing, os, tempfile, threading, weakref
from pathlib import Path

def say(*words):
    os.write(1, f"{' '.join(words)}\\n".encode())  # whole lines

def fail():
    raise ValueError("no such thing")

def thread():
    first.wait()
    say("thread")

if __name__ == "__main__":
    multiprocessing.Process(target=Path("by process").touch).start()
    first = threading.Event()
    executor = concurrent.futures.ThreadPoolExecutor(1)
    atexit.register(say, "atexit, the first one")
    atexit.register(fail)
    atexit.register(atexit.register, say, "registered late")
    atexit.register(thread)
    atexit.unregister(thread)
    threading._register_atexit(first.set)
    threading._register_atexit(say, "of threading")
    executor.submit(first.wait)
    executor.submit(say, "submitted")
    threading.Thread(target=thread).start()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    folder = tempfile.TemporaryDirectory(dir=".", prefix="removed-")
    weakref.finalize(first, say, "finalized")
    text = open("open.txt", "w")
    text.write("never closed")
    packed = gzip.open("open.gz", "wt")
    packed.write("never closed")
    say("the script ends")
"""
"""The first event is set by a call of threading, so that nothing runs before the end."""

WORKER = """
import os, sys
from holdfast.runtime.worker.worker import EndWatch, end_as_python, flush_output
from holdfast.runtime.worker.worker import _run
_run(sys.argv[1])
with EndWatch(print):
    end_as_python()
flush_output()
os._exit(0)
"""

ENDS = ("pass", "import sys; sys.exit(0)", "import sys; sys.exit(3)", "raise OSError('later')")


@pytest.fixture(autouse=True)
def _own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(contexts, "trainings", contexts.Trainings(390))


class Exited(BaseException):
    """The exit code with which the worker's process would have ended."""


def _exit(code: int) -> NoReturn:
    raise Exited(code)


class Still:
    """A pulse that does not beat."""

    def __init__(self, page: WorkerStatus, interval_s: float, poll: object) -> None: ...

    def start(self) -> None: ...


class Worker:
    """A worker in this process, alone in its world, and what happens at its end."""

    def __init__(self, folder: Path) -> None:
        self._script = folder / "train.py"
        self._folder = folder
        self.events: list[str] = []
        ours, theirs = socket.socketpair()
        self._agent, self._theirs = Channel(ours), theirs.detach()
        self.page = WorkerStatus.create()
        self._others: list[Any] = []

    def run(self, script: str) -> int:
        """Run a worker to its end; return its exit code."""
        self._script.write_text(script)
        config = worker_config(script=self._script, run_dir=self._folder)
        with pytest.raises(Exited) as exited:
            main(config, self._theirs, os.dup(self.page.fd))
        for other in self._others:
            other.close()  # as the end of a process does
        code: int = exited.value.args[0]
        return code

    def join(self, config: WorkerConfig, agent: Channel, page: WorkerStatus) -> WorkerContext:
        """Stand in for joining a world of MPI."""
        journal, events = journal_of(config), self.events
        self._others += [agent, page]

        class Leaving(LocalCommunicator):
            def leave(self) -> None:
                events.append(f"left while {page.phase.label}")

        def ask(question: dict[str, object]) -> dict[str, Any]:
            events.append(f"asked {question['kind']}")
            return {}

        finish = [lambda: events.append("finished")]
        faults = without_faults(config)
        return WorkerContext(
            config, Leaving(), journal, page, faults, agent.send, ask, at_end=finish
        )

    def told(self) -> dict[str, Any]:
        """Return the next message to the agent."""
        return self._agent.receive() or {}

    def close(self) -> None:
        self._agent.close()
        self.page.close()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    found = Worker(tmp_path)
    monkeypatch.setattr(contexts, "_current", None)
    monkeypatch.setattr(worker_module, "_join", found.join)
    monkeypatch.setattr(worker_module, "listen", lambda page: None)
    monkeypatch.setattr(worker_module, "Pulse", Still)
    monkeypatch.setattr(os, "_exit", _exit)
    yield found
    found.close()


def test_worker_whose_script_ended_well_leaves_with_the_others_and_says_so(worker: Worker) -> None:
    assert worker.run("") == 0

    assert worker.events == ["finished", "asked ScriptEnded", "left while leaving"]
    assert worker.told() == to_message(WorkerLeaving(WorkerId(0)))


def test_worker_whose_script_failed_tells_why_and_waits_for_nobody(worker: Worker) -> None:
    assert worker.run("raise ValueError('no such column')") == 1

    told = worker.told()
    assert (told["kind"], told["error_type"], told["message"]) == (
        "WorkerFailed", "ValueError", "no such column",
    )  # fmt: skip
    assert worker.events == ["finished"]
    assert worker.page.phase is Phase.STARTING


@pytest.mark.parametrize(
    ("error", "code"), [("UsageError", 2), ("WorldLost", 70), ("StoppedEarly", 75)]
)
def test_worker_ends_with_the_exit_code_of_its_error(worker: Worker, error: str, code: int) -> None:
    text = f"from holdfast.runtime import errors\nraise errors.{error}('why')"

    assert worker.run(text) == code
    assert worker.told()["exit_code"] == code


def test_worker_that_was_asked_to_stop_leaves_with_the_others(worker: Worker) -> None:
    text = "from holdfast.runtime import errors\nraise errors.StopRequested('asked')"

    assert worker.run(text) == 0
    assert worker.events[-1] == "left while leaving"


def test_worker_has_its_device_before_anything_looks_for_devices(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(place: int) -> None:
        worker.events.append(f"takes device {place}")

    def join(config: WorkerConfig, agent: Channel, page: WorkerStatus) -> WorkerContext:
        worker.events.append("joins")
        return worker.join(config, agent, page)

    monkeypatch.setattr(worker_module, "take_device", take)
    monkeypatch.setattr(worker_module, "_join", join)

    worker.run("")

    assert worker.events[:2] == ["takes device 0", "joins"]


def test_script_finds_the_surroundings_of_its_worker(worker: Worker) -> None:
    text = "from holdfast.runtime.worker import context\ncontext.current().notify('here')\n"

    worker.run(text)

    assert worker.told() == to_message(Notice("here"))


def page_in(phase: Phase = Phase.STARTING) -> WorkerStatus:
    page = WorkerStatus.create()
    page.phase = phase
    page.step = 59
    return page


def end_of(folder: Path, text: str, phase: Phase) -> Any:
    script = folder / "train.py"
    script.write_text(text)
    return run_script(worker_config(script=script), page_in(phase))


WELL = ("", "import sys; sys.exit()", "raise SystemExit(0)")
EARLY = ("SystemExit", 1, "the script ended at step 59 of 390, before training was over")
NO_DATA = ("SystemExit", 1, "no data in /data")
EXIT = "import sys, pathlib; sys.exit({})"
CONTRIBUTE = "import sys\ndef contribute():\n    sys.exit(0)\ncontribute()\n"
BY_NUMBER = ("SystemExit", 1, "the script ended itself with exit code 3")


@pytest.mark.parametrize(
    ("phase", "text", "told", "where"),
    [
        *[(phase, text, None, None) for phase in TRAINED for text in WELL],
        *[(phase, text, EARLY, None) for phase in TRAINING for text in WELL],
        (Phase.TRAINING, CONTRIBUTE, EARLY, "contribute (train.py:3)"),
        (Phase.CONCLUDING, EXIT.format("'no data in /data'"), NO_DATA, ""),
        (Phase.CONCLUDING, EXIT.format("pathlib.Path('no data in /data')"), NO_DATA, ""),
        (Phase.CONCLUDING, EXIT.format("3"), BY_NUMBER, ""),
        (
            Phase.STARTING,
            "import keras_of_nobody",
            ("ModuleNotFoundError", 1, "No module named 'keras_of_nobody'"),
            "<module> (train.py:1)",
        ),
        (
            Phase.TRAINING,
            "import json\ndef read():\n    json.loads('{')\nread()\n",
            ("JSONDecodeError", 1, "Expecting property name enclosed in double quotes: line 1 "
             "column 2 (char 1)"),
            "read (train.py:3)",
        ),
    ],
)  # fmt: skip
def test_end_of_a_script_is_an_error_with_its_place_unless_it_is_well_and_out_of_training(
    tmp_path: Path, phase: Phase, text: str, told: object, where: str | None
) -> None:
    report = end_of(tmp_path, text, phase)

    assert (report and (report.error_type, report.exit_code, report.message)) == told
    if where is not None:
        assert report.where == where
        assert ("<module>" in report.traceback) == bool(where)
        assert "runpy" not in report.traceback


CAUGHT = (
    "from holdfast.runtime import errors\n"
    "from holdfast.runtime.worker import context, injector\n"
    "def fit():\n"
    "    error = {error}\n"
    "    context.trainings.failure = error\n"
    "    raise error\n"
    "try:\n"
    "    fit()\n"
    "except {what}:\n"
    "    {then}\n"
)


DECIDED = (
    ("errors.WorldLost", 70), ("errors.StoppedEarly", 75), ("errors.UsageError", 2),
    ("injector.InjectedFault", 1),
)  # fmt: skip
STOP, WENT_ON = "errors.StopRequested('stop')", "raise AssertionError('went on')"


@pytest.mark.parametrize(
    ("error", "what", "then", "told"),
    [
        *[(STOP, "BaseException", then, None) for then in ENDS],
        (STOP, "Exception", WENT_ON, None),  # it is not caught with every exception
        *[
            (f"{kind}('why')", "BaseException", then, (kind.rpartition(".")[2], code))
            for kind, code in DECIDED
            for then in ENDS
        ],
        *[
            ("ValueError('why')", "ValueError", then, (told, 1))
            for then, told in zip(
                ENDS, ("ValueError", "ValueError", "SystemExit", "OSError"), strict=True
            )
        ],
    ],
)
def test_end_of_a_training_counts_though_the_script_has_caught_it(
    tmp_path: Path, error: str, what: str, then: str, told: tuple[str, int] | None
) -> None:
    text = CAUGHT.format(error=error, what=what, then=then)

    report = end_of(tmp_path, text, Phase.FAILED)

    assert (report and (report.error_type, report.exit_code)) == told
    if report is not None and error.endswith(f"{report.error_type}('why')"):
        assert report.message == "why"
        assert report.where == ("fit (train.py:6)" if what == "ValueError" else report.where)


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


@pytest.mark.parametrize(
    "text",
    ["raise ValueError('begin' + 'x' * 20_000_000 + 'end')",
     "import sys\nsys.exit('begin' + 'x' * 20_000_000 + 'end')"],
    ids=["exception", "exit"],
)  # fmt: skip
def test_error_that_is_too_long_for_a_message_is_cut(tmp_path: Path, text: str) -> None:
    report = end_of(tmp_path, text, Phase.TRAINING)

    assert len(report.message) <= MOST_CHARACTERS
    assert report.message.startswith("begin")
    assert report.message.endswith("end")
    assert len(json.dumps(to_message(report))) < 100_000
    if report.traceback:
        assert report.traceback.startswith("Traceback")
        assert report.traceback.endswith("end\n")


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

    def refuse(_: WorkerConfig) -> None:
        raise UsageError("this Keras is too old")

    (tmp_path / "prepared").touch()  # stays
    report: Any = run_script(worker_config(script=script), page_in(), refuse)
    assert (report.error_type, report.message) == ("UsageError", "this Keras is too old")
    assert (tmp_path / "prepared").exists()


MISSING = "TensorFlow cannot be imported: libcuda is missing; ins"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("raise ImportError('libcuda is missing', name='tensorflow.python')", MISSING),
        ("exec('raise ImportError(\"libcuda is missing\")', {'__name__': 'keras.src'})", MISSING),
        (
            "exec('raise ImportError(\"none\", name=\"torch\")', {'__name__': 'keras.src'})",
            "Keras looks for its backend torch, and holdfast trains",
        ),
    ],
    ids=["by name", "within", "another backend"],
)
def test_tensorflow_that_cannot_be_imported_comes_with_advice(
    tmp_path: Path, text: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorflow", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    report = end_of(tmp_path, text, Phase.STARTING)

    assert (report.error_type, report.exit_code) == ("UsageError", 2)
    assert report.message.startswith(words)
    assert report.traceback == ""


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

    assert (report.error_type, report.exit_code) == ("ImportError", 1)
    assert report.where.startswith("<module> (train.py:1)")


@pytest.mark.parametrize(
    ("phase", "is_in_training"),
    [(phase, True) for phase in (*TRAINING, Phase.FAILED)] + [(phase, False) for phase in TRAINED],
)
def test_report_tells_whether_the_script_was_in_its_training(
    *, tmp_path: Path, phase: Phase, is_in_training: bool
) -> None:
    report = end_of(tmp_path, "raise KeyError('loss')", phase)

    assert report.is_in_training == is_in_training


def _end(folder: Path, *command: str) -> tuple[list[str], list[str], dict[str, bytes]]:
    folder.mkdir()
    run = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return run.stdout.splitlines(), run.stderr.splitlines()[-1:], files


def test_script_ends_as_in_python(tmp_path: Path) -> None:
    """Some lines come from several threads and processes, in any order."""
    script = tmp_path / "script.py"
    script.write_text(LEAVES_WORK)

    said, complaint, files = _end(tmp_path / "worker", "-c", WORKER, str(script))
    pythons = _end(tmp_path / "python", str(script))

    assert sorted(said) == sorted(pythons[0])
    assert said[:2] == pythons[0][:2] == ["the script ends", "of threading"]
    assert said.index("finalized") > said.index("submitted")
    assert said[-1] == pythons[0][-1] == "atexit, the first one"
    assert complaint == pythons[1]
    assert gzip.decompress(files.pop("open.gz")) == b"never closed"  # Python may leave it torn
    pythons[2].pop("open.gz")
    assert files == pythons[2] == {"open.txt": b"never closed", "by process": b""}


TOLD = """
import os, sys, threading
from holdfast.runtime.worker import worker
worker.TOLD_AFTER_S, worker.CUT_AFTER_S = 1, 2
def tell(text):
    print(text, flush=True)
    told.set()
def cut():
    print("cut", flush=True)
    os._exit(0)
told, never = threading.Event(), threading.Event()
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))
with worker.EndWatch(tell, cut if "cut" in sys.argv else None):
    worker.end_as_python()
print("over", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    ("script", "what"),
    [
        (
            "threading.Thread(target=never.wait, daemon=True).start()\n"
            "def poll():\n    told.wait()\n"
            "threading.Thread(target=poll, name='poller').start()\n",
            "its thread 'poller' is still in poll (script.py:3)",
        ),
        (
            "import atexit\n@atexit.register\ndef upload():\n    told.wait()\n",
            "a call of its end is still in upload (script.py:4)",
        ),
        (
            "import multiprocessing\nleft, right = multiprocessing.Pipe()\n"
            "def tell(text):\n    print(text, flush=True)\n    left.send(1)\n"
            "multiprocessing.Process(target=right.recv, name='feeder').start()\n",
            "its process 'feeder' still runs",
        ),
    ],
    ids=["thread", "atexit", "process"],
)
def test_end_that_lasts_is_told_with_what_it_waits_for(
    tmp_path: Path, script: str, what: str
) -> None:
    place = tmp_path / "script.py"
    place.write_text(script)

    said, _, _ = _end(tmp_path / "in", "-c", TOLD, str(place))

    assert said == [
        f"the script has come to its end, but {what}: the job waits for it, as Python does; "
        "end it in the script, or stop the job (Ctrl-C)",
        "over",
    ]


def test_end_that_the_job_has_decided_is_cut(tmp_path: Path) -> None:
    place = tmp_path / "script.py"
    place.write_text("threading.Thread(target=never.wait).start()\n")

    said, _, _ = _end(tmp_path / "in", "-c", TOLD, str(place), "cut")

    assert said[1:] == ["cut"]
