"""All processes of a run name by one date, share values, and read the clock for all else."""

from __future__ import annotations

import copy
import datetime
import os
import pickle
import runpy
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import UsageError, shared
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.script import calls
from holdfast.runtime.script.calls import (
    CallingScript,
    during_training,
    exchange,
    share_names,
    share_values,
)

SCRIPT = """
import datetime as dates, pickle, time
from datetime import date, datetime, timezone

def stamp():
    return datetime.now().strftime("%Y%m%d-%H%M%S-%f")

names = [
    stamp(), stamp(), f"{datetime.now():%b%d_%H-%M-%S-%f}", dates.datetime.utcnow().strftime("%s"),
    datetime.now(timezone.utc).strftime("%Y-%m-%d-%H%M%S"), f"{date.today():%Y%m%d}",
    time.strftime("%Y%m%d-%H%M%S"), time.strftime("%H%M%S", time.gmtime()),
    "logs/" + datetime.now().strftime("%Y%m%d"),
]
others = [f"{datetime(2001, 2, 3, 4, 5):%Y%m%d}", time.strftime("%Y", time.gmtime(5)),
          time.strftime("%Y", (1970, 1, 1, 0, 0, 0, 3, 1, 0))]
start = time.time(), datetime.now()
took = time.time() - start[0], (datetime.now() - start[1]).total_seconds()
shown = f"{datetime.now():%Y-%m-%d %H:%M:%S.%f}"
copy = pickle.loads(pickle.dumps(start[1]))
"""


@pytest.fixture(autouse=True)
def _all_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", time.strftime)
    monkeypatch.setattr(calls, "_sharing", None)


def launch(directory: Path, text: str = SCRIPT) -> dict[str, Any]:
    """Run the script as a process of the run would."""
    script = directory / "train.py"
    script.write_text(text)
    share_names(ScriptRecord(directory / "script.jsonl"), CallingScript(script))
    return runpy.run_path(str(script))


def test_later_launch_has_the_names_of_the_first_and_its_own_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = launch(tmp_path)
    time.sleep(1.1)
    monkeypatch.undo()
    second = launch(tmp_path, f"# a new line\n{SCRIPT}")

    assert second["names"] == first["names"]
    assert first["names"][0] != first["names"][1]
    assert first["others"] == second["others"] == ["20010203", "1970", "1970"]
    for run in (first, second):
        assert all(0 <= took < 1 for took in run["took"])
        assert run["copy"] == run["start"][1]
        assert type(run["copy"]) is datetime.datetime
    assert second["start"][0] >= first["start"][0] + 1
    assert second["shown"] > first["shown"]


def test_training_and_libraries_have_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from datetime import datetime\nname = f'{datetime.now():%d-%f}'"
    with during_training():
        first = launch(tmp_path, text)["name"]
    monkeypatch.undo()
    second = launch(tmp_path, text)["name"]
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text(text)

    assert first != second
    assert runpy.run_path(str(library))["name"] not in (first, second)
    assert (tmp_path / "script.jsonl").read_text().count("\n") == 1


def test_exchanged_functions_are_pickled_by_name_and_are_no_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name in ((time, "time"), (os, "getpid")):
        monkeypatch.setattr(module, name, getattr(module, name))
        exchange(module, name, lambda: 7)

    class Timer:
        """Keeps functions as a script's class may do."""

        clock = time.time
        pid = os.getpid

    assert (Timer().clock(), Timer().pid(), os.getpid.__name__) == (7, 7, "getpid")
    for function in (os.getpid, time.time):
        assert pickle.loads(pickle.dumps(function)) is function
        assert copy.deepcopy(function) is function


def share(folder: Path, *values: Any) -> list[Any]:
    """Be two lines of the script, in a new process of the run."""
    share_values(ScriptRecord(folder / "script.jsonl"), CallingScript(Path(__file__)))
    return [*[shared(value) for value in values], shared("of another line")]


def test_shared_values_are_those_of_the_process_that_came_first(tmp_path: Path) -> None:
    values = [1, None, {"entries": [0.5, "a"]}, True]
    first = share(tmp_path, *values)

    assert first == [*values, "of another line"]
    assert share(tmp_path, 2, "b", {}, False) == first
    assert share(tmp_path, 2, "b", {}, False, "a fifth one")[-2] == "a fifth one"


def test_shared_value_is_the_scripts_own_without_a_job() -> None:
    assert shared([1]) == [1]


@pytest.mark.parametrize("value", [{1}, (1, 2), float("nan"), {1: "a"}, object()])
def test_value_that_cannot_be_kept_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=f"shared\\({type(value).__name__}\\) cannot be kept"):
        shared(value)


def test_sharing_within_a_training_is_refused(tmp_path: Path) -> None:
    with during_training(), pytest.raises(UsageError, match="outside of fit"):
        share(tmp_path, 1)
