"""What faulthandler and py-spy write becomes one form, within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.evidence import stacks as module
from holdfast.runtime.evidence.stacks import MOST_CHARACTERS, Frame, Stacks, Thread

HOLDFAST = Path(module.__file__).parents[2]
FAULTHANDLER = f"""Thread 0x00007f23065846c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "{HOLDFAST}/runtime/system/heartbeat.py", line 177 in _run

Current thread 0x00007f23073f7b80 (most recent call first):
  File "/usr/lib/python3.11/re/__init__.py", line 166 in match
  File "/home/ann/train.py", line 42 in contribute
  File "{HOLDFAST}/runtime/training/loop.py", line 168 in _compute
  File "/home/ann/train.py", line 99 in <module>
  File "<frozen runpy>", line 88 in _run_code
"""
PY_SPY = f"""Process 27382: python3 -m holdfast.runtime.host.pool --agent 12
Python v3.11.7 (/usr/bin/python3.11)

Thread 27383 (idle): "holdfast-pulse"
    wait (/usr/lib/python3.11/threading.py:331)
Thread 27382 (active+gil): "MainThread"
    match (/usr/lib/python3.11/re/__init__.py:166)
    Model.contribute (/home/ann/train.py:42)
    _compute ({HOLDFAST}/runtime/training/loop.py:168)
    <module> (/home/ann/train.py:99)
    _run_code (<frozen runpy>:88)
"""


def test_faulthandlers_last_thread_is_the_main_thread_and_comes_first() -> None:
    stacks = Stacks.of_faulthandler(FAULTHANDLER)

    assert [thread.name for thread in stacks.threads] == ["main thread", "thread 2"]
    assert stacks.threads[0].frames[1] == Frame("/home/ann/train.py", "42", "contribute")


def test_py_spys_main_thread_comes_first() -> None:
    stacks = Stacks.of_py_spy(PY_SPY)

    assert [thread.name for thread in stacks.threads] == ["main thread", "holdfast-pulse"]
    assert stacks.threads[0].frames[1] == Frame("/home/ann/train.py", "42", "Model.contribute")


def test_place_of_a_worker_is_the_innermost_call_that_is_no_librarys() -> None:
    assert Stacks.of_faulthandler(FAULTHANDLER).where == "contribute (train.py:42)"
    assert Stacks.of_py_spy(PY_SPY).where == "Model.contribute (train.py:42)"


def test_place_in_holdfasts_own_code_is_not_blamed_on_the_script() -> None:
    agree = Frame(f"{HOLDFAST}/runtime/exchange/mpi_communicator.py", "88", "agree")
    users = Frame("/home/ann/train.py", "99", "<module>")

    assert (
        Stacks((Thread("main thread", (agree, users)),)).where == "agree (mpi_communicator.py:88)"
    )


def holdfasts(room: str, name: str, line: int) -> Frame:
    return Frame(f"{HOLDFAST}/runtime/{room}", str(line), name)


FIT = Frame("/home/ann/train.py", "99", "<module>")
HOOK = Frame("/home/ann/train.py", "12", "on_epoch_end")
BATCHES = Frame("/home/ann/train.py", "30", "batches")
NEXT = holdfasts("data/tf_source.py", "__next__", 46)
READ = holdfasts("data/tf_source.py", "_read", 70)
PY_FUNC = Frame("/venv/site-packages/tensorflow/python/ops/script_ops.py", "269", "__call__")


@pytest.mark.parametrize(
    ("main", "other", "where", "is_reading"),
    [
        ((holdfasts("callbacks/file_guard.py", "open", 60), HOOK, FIT), (), HOOK, False),
        ((NEXT, FIT), (BATCHES, READ), BATCHES, True),
        ((NEXT, FIT), (BATCHES, PY_FUNC), BATCHES, True),
        ((NEXT, FIT), (BATCHES,), FIT, True),
        ((BATCHES, NEXT, FIT), (), BATCHES, True),
        ((holdfasts("callbacks/file_guard.py", "open", 60),), (), None, False),
    ],
    ids=["file", "reader", "py_function", "thread of its own", "read here", "nothing of the user"],
)
def test_place_in_code_that_waits_for_the_script_is_the_scripts(
    *, main: tuple[Frame, ...], other: tuple[Frame, ...], where: Frame | None, is_reading: bool
) -> None:
    stacks = Stacks((Thread("main thread", main), Thread("thread 2", other)))

    assert stacks.where == (where or main[0]).short
    assert stacks.is_reading == is_reading


def test_text_ends_with_the_script_and_has_one_line_for_an_idle_thread() -> None:
    text = str(Stacks.of_faulthandler(FAULTHANDLER))

    assert text.splitlines()[:2] == [
        "  main thread:",
        "    match (/usr/lib/python3.11/re/__init__.py:166)",
    ]
    assert "<module> (/home/ann/train.py:99)" in text
    assert "runpy" not in text
    assert text.splitlines()[-1].startswith("  thread 2: _run (")


def test_nothing_is_known_of_a_process_that_wrote_nothing() -> None:
    for empty in (Stacks.of_faulthandler(""), Stacks.of_py_spy("Error: no such process")):
        assert (empty.where, str(empty)) == ("", "")


def test_a_line_that_was_torn_off_is_left_out() -> None:
    torn = FAULTHANDLER[: FAULTHANDLER.index("line 42")]

    (main, _) = Stacks.of_faulthandler(torn).threads
    assert [frame.name for frame in main.frames] == ["match"]


@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF) | st.just("\n"), max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    for stacks in (Stacks.of_faulthandler(text), Stacks.of_py_spy(text)):
        assert isinstance(str(stacks) + stacks.where, str)


@given(st.integers(1, 300), st.integers(1, 300))
def test_text_is_bounded_and_begins_with_the_main_thread(threads: int, frames: int) -> None:
    frame = Frame("/home/ann/a-long-name-of-a-file.py", "1", "f")
    stacks = Stacks(tuple(Thread(f"t{n}", (frame,) * frames) for n in range(threads)))

    assert len(str(stacks)) <= MOST_CHARACTERS
    assert str(stacks).startswith("  t0:\n    f (")
