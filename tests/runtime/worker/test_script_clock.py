"""All processes of a run name by one date, and read the clock for all else."""

from __future__ import annotations

import datetime
import runpy
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_clock import CallingScript, during_training, share_names

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
def _clock_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", time.strftime)


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
