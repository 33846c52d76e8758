"""All processes of a run name by one clock and one pid, and measure by their own."""

from __future__ import annotations

import datetime
import gc
import linecache
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_clock import (
    CallingScript,
    ScriptClock,
    during_training,
    is_for_a_name,
    share_clock,
)

SCRIPT = """
import os, time, datetime
from datetime import date
from pathlib import Path

names = [
    f"{datetime.datetime.now():%Y%m%d-%H%M%S}", datetime.datetime.utcnow().isoformat(),
    datetime.datetime.now(datetime.timezone.utc).isoformat(), date.today().isoformat(),
    time.strftime("%Y%m%d-%H%M%S"), time.ctime(), time.strftime("%H", time.gmtime()),
    str(time.time()), f"{time.time_ns()}", "-".join(str(os.getpid()) for _ in range(2)),
]
kind = type(datetime.datetime.now())
start = time.time()
took = time.time() - start
pid = os.getpid()
"""


@pytest.fixture(autouse=True)
def clock_is_put_back(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("time", "time_ns", "localtime", "gmtime", "ctime", "asctime", "strftime"):
        monkeypatch.setattr(time, name, getattr(time, name))
    monkeypatch.setattr(os, "getpid", os.getpid)
    methods = gc.get_referents(datetime.datetime.__dict__)[0]
    plain = {name: methods[name] for name in ("now", "utcnow")}
    yield
    methods |= plain


def launch(directory: Path, text: str = SCRIPT) -> dict[str, Any]:
    """Run the script as a process of the run would."""
    script = directory / str(len(text)) / "train.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(text)
    record = ScriptRecord(directory / "script.jsonl")
    share_clock(ScriptClock(record, CallingScript(script)))
    return runpy.run_path(str(script))


def test_later_launch_has_the_names_of_the_first_and_its_own_times(tmp_path: Path) -> None:
    pid = os.getpid()
    first, before = launch(tmp_path), time.time()
    record = tmp_path / "script.jsonl"
    record.write_text(record.read_text().replace(f'["pid", {pid}]', '["pid", 7]'))
    second = launch(tmp_path)

    assert first["names"][-1] == f"{pid}-{pid}"
    assert second["names"] == [*first["names"][:-1], "7-7"]
    assert second["pid"] == pid
    assert second["start"] >= before
    assert 0 <= second["took"] < 60
    assert second["kind"] is datetime.datetime


def test_script_that_has_changed_elsewhere_keeps_its_names(tmp_path: Path) -> None:
    first = launch(tmp_path)

    assert launch(tmp_path, f"# a new line\n{SCRIPT}")["names"] == first["names"]


def test_each_pass_of_a_loop_has_a_time_of_its_own(tmp_path: Path) -> None:
    text = "import time\nnames = [f'{time.time()}' for _ in range(3)]"
    first, second = launch(tmp_path, text)["names"], launch(tmp_path, text)["names"]

    assert first == second
    assert len(set(first)) == 3


def test_training_and_libraries_have_the_real_clock(tmp_path: Path) -> None:
    with during_training():
        first = launch(tmp_path, "import time\nname = f'{time.time()}'")["name"]
    second = launch(tmp_path, "import time\nname = f'{time.time()}'")["name"]
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text("import time\nname = f'{time.time()}'")

    assert first != second
    assert runpy.run_path(str(library))["name"] not in (first, second)
    assert (tmp_path / "script.jsonl").read_text().count("\n") == 1


def answers(text: str, function: str) -> list[bool]:
    """Return what is said of each call of ``read`` in a script."""
    file = f"<{text}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    found = []

    def read(*_: Any) -> Any:
        frame: FrameType = sys._getframe(1)
        found.append(is_for_a_name(frame.f_code, frame.f_lineno, frame.f_lasti, function))
        return {"now": datetime.datetime.now, "getpid": os.getpid}.get(function, time.time)()

    names: dict[str, Any] = {"os": os, "other": lambda *_, **__: 0, "seed": lambda _: 0}
    names[function] = read
    exec(compile(text, file, "exec"), names)
    return found


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("now", "out = f'runs/{now():%Y%m%d}'"),
        ("now", "out = 'logs/' + now().strftime('%H')"),
        ("now", "out = (\n    now()\n    .strftime('%H')\n)"),
        ("now", "start = now()\nout = start.strftime('%H')\ntook = now() - start"),
        ("now", "def stamp():\n    return now()\nout = f'{stamp()}'"),
        ("now", "out = f'{now().year}-{now().month}'"),
        ("time", "out = f'model-{int(time())}.keras'"),
        ("time", "stamp = int(time())\nout = os.path.join('runs', str(stamp))"),
        ("time", "out = 'run-%d' % time()"),
        ("time", "seed(int(time()))"),
        ("time", "t = time()\nother(t)"),
        ("getpid", "other(filename=f'run-{getpid()}.log')"),
        ("getpid", "out = 'run-{}'.format(getpid())"),
        ("getpid", "pid = getpid()\nout = f'{pid}.log'\nprint(pid)"),
        ("getpid", "seed(getpid())"),
    ],
)
def test_text_or_a_seed_is_a_name(function: str, text: str) -> None:
    said = answers(text, function)

    assert said[0]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("time", "start = time()\ntook = time() - start"),
        ("time", "end = time() + 5\nwhile time() > end: pass"),
        ("time", "start = time()\nprint(f'took {time() - start:.1f}')"),
        ("time", "print(time())"),
        ("time", "times = []\ntimes.append(time())"),
        ("now", "print('begin', now())"),
        ("getpid", "os.kill(getpid(), 0)"),
        ("getpid", "pid = getpid()\nout = f'{pid}.log'\nos.kill(pid, 0)"),
        ("getpid", "open(f'/proc/{getpid()}/stat').close()"),
        ("getpid", "os.system(f'true {getpid()}')"),
        ("getpid", "other(getpid())"),
        ("getpid", "same = getpid() == 5"),
    ],
)
def test_measures_actions_and_lines_for_the_user_are_real(function: str, text: str) -> None:
    assert set(answers(text, function)) == {False}


def test_script_without_its_text_reads_for_no_name() -> None:
    said: list[bool] = []
    read: Callable[[], bool] = lambda: is_for_a_name(  # noqa: E731
        sys._getframe(1).f_code, 1, sys._getframe(1).f_lasti, "read"
    )
    exec("said.append(f'{read()}')", {"said": said, "read": read})

    assert said == ["False"]
