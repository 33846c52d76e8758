"""An iterator that is read one element ahead: what it yields, raises, and gives up."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import NoReturn

import pytest

from holdfast.runtime.data.tf_source import ReadAhead

pytestmark = pytest.mark.tensorflow  # the module imports it

BOUND_S = 60.0


def test_the_elements_come_in_order_and_the_end_stays_the_end() -> None:
    ahead = ReadAhead(iter(range(5)))
    assert list(ahead) == [0, 1, 2, 3, 4]
    assert list(ahead) == []


def test_one_element_more_is_read_while_the_last_one_is_used() -> None:
    reads = [threading.Event() for _ in range(3)]

    def elements() -> Iterator[int]:
        for i, has_read in enumerate(reads):
            has_read.set()
            yield i

    ahead = ReadAhead(elements())
    assert next(ahead) == 0
    assert reads[1].wait(BOUND_S)
    assert not reads[2].is_set()
    assert next(ahead) == 1
    assert reads[2].wait(BOUND_S)


def test_an_error_is_raised_where_its_element_would_have_come() -> None:
    def elements() -> Iterator[int]:
        yield 0
        raise RuntimeError("no more disk")

    ahead = ReadAhead(elements())
    assert next(ahead) == 0
    with pytest.raises(RuntimeError, match="no more disk"):
        next(ahead)


def test_an_iterator_that_has_ended_is_given_up_although_its_end_was_seen() -> None:
    class Elements:
        def __iter__(self) -> Elements:
            return self

        def __next__(self) -> int:
            raise StopIteration

    elements = Elements()
    has_gone = threading.Event()
    gone = weakref.ref(elements, lambda _: has_gone.set())
    ahead = ReadAhead(elements)
    del elements
    assert list(ahead) == []
    assert list(ahead) == []
    del ahead
    assert has_gone.wait(BOUND_S)
    assert gone() is None


def test_an_iterator_is_given_up_by_the_reader_without_waiting() -> None:
    """``close`` of a generator runs where its last reference goes."""
    may_end, closed_in = threading.Event(), []
    has_closed = threading.Event()

    def elements() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            assert may_end.wait(BOUND_S)
            closed_in.append(threading.current_thread().name)
            has_closed.set()

    ahead = ReadAhead(elements())
    assert next(ahead) == 0
    del ahead
    gc.collect()
    may_end.set()  # reached although the iterator is still being closed
    assert has_closed.wait(BOUND_S)
    assert closed_in[0].startswith("reader")


def test_what_the_end_came_from_is_given_up_by_the_reader() -> None:
    """The end of a dataset comes from an error whose frames hold the iterator's handle."""
    given_up_in = []
    has_gone = threading.Event()

    class Handle:
        def __del__(self) -> None:
            given_up_in.append(threading.current_thread().name)
            has_gone.set()

    class Elements:
        def __init__(self) -> None:
            self.handle = Handle()

        def __iter__(self) -> Elements:
            return self

        def __next__(self) -> int:
            try:
                _raise_with(self.handle)
            except ValueError:
                raise StopIteration  # noqa: B904, as tf.data does

    gc.disable()
    try:
        ahead = ReadAhead(Elements())
        assert list(ahead) == []
        assert has_gone.wait(BOUND_S)
        assert list(ahead) == []
    finally:
        gc.enable()
    assert given_up_in[0].startswith("reader")


def _raise_with(handle: object) -> NoReturn:
    raise ValueError(type(handle))
