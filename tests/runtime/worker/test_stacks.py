"""Stacks and tracebacks, as a user reads them."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.worker import stacks as module
from holdfast.runtime.worker.stacks import (
    MOST_CHARACTERS,
    Frame,
    Stacks,
    Thread,
    users_trace,
)

HOLDFAST = Path(module.__file__).parents[2]
FAULTHANDLER = f"""Thread 0x00007f23065846c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "{HOLDFAST}/runtime/system/worker_status.py", line 177 in _run

Current thread 0x00007f23073f7b80 (most recent call first):
  File "/usr/lib/python3.11/re/__init__.py", line 166 in match
  File "/home/ann/train.py", line 42 in contribute
  File "{HOLDFAST}/runtime/training/loop.py", line 168 in _compute
  File "/home/ann/train.py", line 99 in <module>
  File "<frozen runpy>", line 88 in _run_code
"""

FIT = Frame("/home/ann/train.py", "99", "<module>")
HOOK = Frame("/home/ann/train.py", "12", "on_epoch_end")
BATCHES = Frame("/home/ann/train.py", "30", "batches")

PY_FUNC = Frame("/venv/site-packages/tensorflow/python/ops/script_ops.py", "269", "__call__")

TRACE = f"""Traceback (most recent call last):
  File "/home/ann/train.py", line 20, in <module>
    model.fit(x, y)
    ~~~~~~~~~^^^^^^
  File "{HOLDFAST}/runtime/keras/keras_fit.py", line 68, in _fit
    return fit(model, FitCall(*args, **arguments))
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "{HOLDFAST}/runtime/training/loop.py", line 105, in run
    state = next_state(state, self._act(state))
  [Previous line repeated 3 more times]
  File "/venv/lib/python3.11/site-packages/keras/src/callbacks/callback_list.py", line 170, in f
    callback.on_epoch_end(epoch, logs)
  File "/home/ann/train.py", line 9, in on_epoch_end
    raise ValueError("no such column")
ValueError: no such column
"""
USERS = """Traceback (most recent call last):
  File "/home/ann/train.py", line 20, in <module>
    model.fit(x, y)
    ~~~~~~~~~^^^^^^
  [2 calls of holdfast: -v shows more]
  File "/venv/lib/python3.11/site-packages/keras/src/callbacks/callback_list.py", line 170, in f
    callback.on_epoch_end(epoch, logs)
  File "/home/ann/train.py", line 9, in on_epoch_end
    raise ValueError("no such column")
ValueError: no such column
"""


def test_faulthandlers_last_thread_is_the_main_thread_and_comes_first() -> None:
    stacks = Stacks.of(FAULTHANDLER)

    assert [thread.name for thread in stacks.threads] == ["main thread", "thread 2"]
    assert stacks.threads[0].frames[1] == Frame("/home/ann/train.py", "42", "contribute")
    assert stacks.where == "contribute (train.py:42)"  # the innermost call that is no library's
    assert (Stacks.of("").where, str(Stacks.of(""))) == ("", "")


def holdfasts(package: str, name: str, line: int) -> Frame:
    return Frame(f"{HOLDFAST}/runtime/{package}", str(line), name)


NEXT = holdfasts("data/tf_source.py", "__next__", 46)
READ = holdfasts("data/tf_source.py", "_read", 70)


@pytest.mark.parametrize(
    ("main", "other", "where", "is_reading"),
    [
        ((holdfasts("script/overlay.py", "open", 60), HOOK, FIT), (), HOOK, False),
        ((NEXT, FIT), (BATCHES, READ), BATCHES, True),
        ((NEXT, FIT), (BATCHES, PY_FUNC), BATCHES, True),
        ((NEXT, FIT), (BATCHES,), FIT, True),
        ((BATCHES, NEXT, FIT), (), BATCHES, True),
        ((holdfasts("script/overlay.py", "open", 60),), (), None, False),
        ((holdfasts("exchange/mpi_communicator.py", "agree", 88), FIT), (), None, False),
    ],
    ids=[
        "file", "reader", "py_function", "thread of its own", "read here", "nothing of the user",
        "holdfast waits for others",
    ],
)  # fmt: skip
def test_place_in_code_that_waits_for_the_script_is_the_scripts(
    *, main: tuple[Frame, ...], other: tuple[Frame, ...], where: Frame | None, is_reading: bool
) -> None:
    stacks = Stacks((Thread("main thread", main), Thread("thread 2", other)))

    assert stacks.where == (where or main[0]).short
    assert stacks.is_reading == is_reading


def test_text_ends_with_the_script_and_has_one_line_for_an_idle_thread() -> None:
    text = str(Stacks.of(FAULTHANDLER))

    assert text.splitlines()[:2] == [
        "  main thread:",
        "    match (/usr/lib/python3.11/re/__init__.py:166)",
    ]
    assert "<module> (/home/ann/train.py:99)" in text
    assert "runpy" not in text
    assert text.splitlines()[-1].startswith("  thread 2: _run (")


def test_a_line_that_was_torn_off_is_left_out() -> None:
    torn = FAULTHANDLER[: FAULTHANDLER.index("line 42")]

    (main, _) = Stacks.of(torn).threads
    assert [frame.name for frame in main.frames] == ["match"]


@given(st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF) | st.just("\n"), max_size=400))
def test_any_text_is_read_without_an_error(text: str) -> None:
    stacks = Stacks.of(text)

    assert isinstance(str(stacks) + stacks.where, str)


@given(st.integers(1, 300), st.integers(1, 300))
def test_text_is_bounded_and_begins_with_the_main_thread(threads: int, frames: int) -> None:
    frame = Frame("/home/ann/a-long-name-of-a-file.py", "1", "f")
    stacks = Stacks(tuple(Thread(f"t{n}", (frame,) * frames) for n in range(threads)))

    assert len(str(stacks)) <= MOST_CHARACTERS
    assert str(stacks).startswith("  t0:\n    f (")


def test_calls_of_holdfast_become_one_line() -> None:
    assert users_trace(TRACE) == USERS


def test_each_error_of_a_chain_loses_its_own() -> None:
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"

    assert users_trace(TRACE + link + TRACE) == USERS + link + USERS


def test_error_that_comes_from_holdfast_still_has_its_words() -> None:
    trace = TRACE.partition('  File "/venv')[0] + "TypeError: fit() got a list\n  of words\n"

    shown = users_trace(trace)

    assert shown.endswith(
        "  [2 calls of holdfast: -v shows more]\nTypeError: fit() got a list\n  of words\n"
    )


def test_trace_without_calls_of_holdfast_is_left_alone() -> None:
    assert users_trace(USERS) == USERS
    assert users_trace("") == ""


def test_trace_that_python_writes_is_understood() -> None:
    try:
        users_trace(None)  # type: ignore[arg-type]
    except AttributeError:
        trace = traceback.format_exc()

    shown = users_trace(trace)

    assert "stacks.py" not in shown.replace(__file__, "")
    assert "  [1 call of holdfast: -v shows more]\n" in shown
    assert shown.splitlines()[0] == trace.splitlines()[0]
    assert shown.splitlines()[-1] == trace.splitlines()[-1]
