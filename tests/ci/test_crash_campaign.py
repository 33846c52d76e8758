"""``ci/crash``: a short form loses nothing, and what it would lose is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from extended import extended

CAMPAIGN = Path(__file__).resolve().parents[2] / "ci" / "crash_campaign"
SUPPORT = Path(__file__).resolve().parents[1] / "support"
VICTIM = """
import os, sys, threading
from pathlib import Path

import supervision
from supervision import KILL, PASS, run_victim

FOLDER = Path(sys.argv[1])


def work(say):
    say("begun")
    for name in ("a", "b"):
        thread = threading.Thread(target=(FOLDER / name).mkdir)
        thread.start()
        thread.join()
        say(name)
"""

pytestmark = pytest.mark.process


def crash(*options: str) -> tuple[int, str]:
    """Run the campaign; return its exit code and what it printed."""
    return run(str(CAMPAIGN), "--seed", "2003", *options)


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": f"{CAMPAIGN}{os.pathsep}{SUPPORT}",
        },
    )
    said = done.stdout + done.stderr
    # Not every machine can hold system calls, or lets anybody mount.
    if "skipped: " in said and done.returncode == 0:
        pytest.skip(said[said.index("skipped: ") :].strip())
    return done.returncode, said


def victim(folder: Path, body: str) -> str:
    """Run a program that has a victim; return what it printed."""
    why_not = "print('skipped: ' + supervision.why_not()) if supervision.why_not() else None\n"
    code, said = run("-c", VICTIM + why_not + body, str(folder))
    assert code == 0, said
    return said


@pytest.mark.parametrize("part", [extended("calls"), "power", "damage"])
def test_crashes_lose_nothing_and_no_save_lies(part: str) -> None:
    code, said = crash("--short", "--part", part)

    assert code == 0, said


@pytest.mark.parametrize(
    ("part", "struck", "sabotage"),
    [
        extended("power", "save", "no-directory-fsync"),
        ("calls", "commit", "no-image-check"),
        extended("calls", "rivals", "no-ownership"),
        extended("power", "begin", "no-record-fsync"),
        extended("damage", "steps", "no-digests"),
    ],
)
def test_campaign_notices_a_guard_that_is_missing(part: str, struck: str, sabotage: str) -> None:
    """``ci/crash`` itself does this with every guard."""
    options = ("--part", part, "--victim", struck, "--sabotage", sabotage, "--first")

    code, said = crash(*options)

    assert code == 1, said
    assert f"replay with ci/crash --part {part} --victim {struck}" in said


def test_guard_whose_lack_nobody_notices_is_a_failure_of_the_campaign() -> None:
    code, said = run(
        "-c",
        "from sabotage import run_one\n"
        "from sabotages import Sabotage\n"
        "blind = Sabotage(lambda: None, 'damage', 'holders')\n"
        "print(*run_one('no-lock', blind, 1, '--short').complaints)",
    )

    assert code == 0, said
    assert "nobody has noticed" in said


@pytest.mark.parametrize(
    ("strike", "seen"),
    [
        ("5", "['begun', 'a', 'b'] 0 True\n"),
        ("KILL", "['begun', 'a'] -9 False\n"),
    ],
    ids=["fails", "killed"],
)
def test_call_of_any_thread_is_struck_by_its_number_and_words_before_are_heard(
    tmp_path: Path, strike: str, seen: str
) -> None:
    said = victim(
        tmp_path,
        f"second = lambda call: {strike} if (call.name, call.number) == ('mkdir', 2) else PASS\n"
        "ended = run_victim(work, FOLDER, second)\n"
        "print(ended.said, ended.code, 'Input/output error' in ended.errors)",
    )

    assert said == seen
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_calls_elsewhere_are_not_counted(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    said = victim(
        tmp_path,
        "ended = run_victim(work, FOLDER / 'in', lambda call: PASS)\n"
        "print([call.name for call in ended.calls])",
    )

    assert said == "['say', 'say', 'say']\n"


def test_victim_that_waits_for_ever_is_ended(tmp_path: Path) -> None:
    said = victim(
        tmp_path,
        "supervision.ENDS_WITHIN_S = 0.2\n"
        "ended = run_victim(lambda say: threading.Event().wait(), FOLDER, lambda call: PASS)\n"
        "print(ended.hangs, ended.code)",
    )

    assert said == "True -9\n"
