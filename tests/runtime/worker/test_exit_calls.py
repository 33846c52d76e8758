"""What a script gives to atexit is called at its end, as Python does it."""

from __future__ import annotations

import atexit

import pytest

from holdfast.runtime.worker.exit_calls import exit_calls


def test_calls_are_made_at_the_end_and_the_last_one_comes_first() -> None:
    made: list[str] = []

    with exit_calls():
        atexit.register(made.append, "first")
        atexit.register(lambda *, word: made.append(word), word="second")
        assert made == []

    assert made == ["second", "first"]


def test_calls_are_made_after_an_error_too() -> None:
    made: list[str] = []

    def script() -> None:
        with exit_calls():
            atexit.register(made.append, "called")
            raise KeyError

    with pytest.raises(KeyError):
        script()

    assert made == ["called"]


def test_a_call_that_fails_is_printed_and_keeps_no_other_from_being_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made: list[str] = []

    with exit_calls():
        atexit.register(made.append, "made")

        @atexit.register
        def _fail() -> None:
            raise ValueError("no such thing")

    assert made == ["made"]
    assert "ValueError: no such thing" in capsys.readouterr().err


def test_what_is_unregistered_is_not_called_and_a_call_may_register_another() -> None:
    made: list[str] = []

    with exit_calls():
        atexit.register(made.append, "never")
        atexit.unregister(made.append)
        atexit.register(lambda: atexit.register(made.append, "late"))

    assert made == ["late"]


def test_registering_is_pythons_own_again_afterwards() -> None:
    before = atexit.register, atexit.unregister

    with exit_calls():
        assert atexit.register is not before[0]

    assert (atexit.register, atexit.unregister) == before
