"""Lines of workers on their way to the log files: a flood costs nobody else a line."""

from __future__ import annotations

from holdfast.runtime.host.log_lines import LogLines, LogPiece


def test_lines_of_each_worker_keep_their_order() -> None:
    lines = LogLines()
    lines.put(0, b"a\n")
    lines.put(1, b"b\n")
    lines.put(0, b"c\nd\n")
    lines.put(0, b"")

    assert lines.take() == [LogPiece(0, b"a\nc\nd\n"), LogPiece(1, b"b\n")]
    assert lines.take() == []


def test_flood_loses_its_own_lines_and_says_where() -> None:
    lines = LogLines(room_bytes=10)
    lines.put(0, b"1\n2\n3\n4\n5\n6\n7\n")
    lines.put(0, b"8\n")
    lines.put(1, b"mine\n")

    assert lines.take() == [LogPiece(0, b"1\n2\n3\n4\n5\n", lost=3), LogPiece(1, b"mine\n")]
    lines.put(0, b"9\n")
    assert lines.take() == [LogPiece(0, b"9\n")]


def test_no_worker_takes_the_way_of_the_others() -> None:
    lines = LogLines(taken_bytes=1 << 16)
    for worker in (0, 1):
        lines.put(worker, (b"x" * 1023 + b"\n") * 200)

    pieces = lines.take()

    of_each = [sum(len(p.lines) for p in pieces if p.worker == worker) for worker in (0, 1)]
    assert of_each[0] == of_each[1] < 3 * (1 << 15)
    rest = 0
    while pieces:
        rest += sum(len(piece.lines) for piece in pieces)
        pieces = lines.take()
    assert rest == 2 * 200 * 1024


def test_long_line_becomes_several() -> None:
    lines = LogLines()
    lines.put(0, b"x" * 40_000 + b"\n" + b"y" * 16_384 + b"\n")

    found = b"".join(piece.lines for piece in lines.take()).splitlines()
    assert list(map(len, found)) == [16_384, 16_384, 40_000 - 2 * 16_384, 16_384]


def test_lines_of_one_worker_may_be_taken_alone_and_wait_while_the_way_is_full() -> None:
    lines = LogLines()
    lines.put(0, b"a\n")
    lines.put(1, b"b\n")
    lines.is_held = lambda: True
    assert lines.take() == []

    lines.is_held = lambda: False
    assert lines.take(1) == [LogPiece(1, b"b\n")]
    assert lines.take(1) == []
    assert lines.take() == [LogPiece(0, b"a\n")]
