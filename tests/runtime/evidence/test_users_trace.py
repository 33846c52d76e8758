"""What a user reads of a traceback: all calls but those of holdfast itself."""

from __future__ import annotations

import traceback
from pathlib import Path

from holdfast.runtime.evidence import stacks as module
from holdfast.runtime.evidence.stacks import users_trace

OWN = Path(module.__file__).parents[1]
TRACE = f"""Traceback (most recent call last):
  File "/home/ann/train.py", line 20, in <module>
    model.fit(x, y)
    ~~~~~~~~~^^^^^^
  File "{OWN}/fit/keras_fit.py", line 68, in _fit
    return fit(model, FitCall(*args, **arguments))
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "{OWN}/training/loop.py", line 105, in run
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

    assert "users_trace.py" not in shown.replace(__file__, "")
    assert "  [2 calls of holdfast: -v shows more]\n" in shown
    assert shown.splitlines()[0] == trace.splitlines()[0]
    assert shown.splitlines()[-1] == trace.splitlines()[-1]
