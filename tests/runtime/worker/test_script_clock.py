"""All processes of a run name by one clock and one pid, and measure by their own."""

from __future__ import annotations

import datetime
import gc
import os
import runpy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_clock import (
    CallingScript,
    ScriptClock,
    during_training,
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
