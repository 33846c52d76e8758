"""Clock and pid are the run's where a line of a script reads them for a name, and else real."""

from __future__ import annotations

import linecache
import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from types import FrameType
from typing import Any

import pytest

from holdfast.runtime.worker.script_clock import is_for_a_name


def answers(text: str, function: str) -> list[bool]:
    """Return what is said of each call of ``read`` in a script."""
    file = f"<{text}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    found = []

    def read(*_: Any) -> Any:
        frame: FrameType = sys._getframe(1)
        found.append(is_for_a_name(frame.f_code, frame.f_lineno, frame.f_lasti, function))
        return {"now": datetime.now, "getpid": os.getpid}.get(function, time.time)()

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
