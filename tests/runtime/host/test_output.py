"""Output of workers, line by line, and the noise that is hidden."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from open_files import open_files

from holdfast.runtime.host.output import (
    MOST_LINES,
    Forwarded,
    LastLines,
    LogLines,
    NoiseFilter,
    OutputForwarder,
    Streams,
    without_rules,
)
from holdfast.runtime.run.worker_logs import LogText
from holdfast.runtime.system.line_sink import LineSink

BOUND_S = 90.0
NOISE = b"Error in NBC_Start_round() (-1)\n"
LONG = b"y" * 10_000 + b"\n"

RULE = b"-" * 74 + b"\n"
NBC = (
    b"NBC_Progress: an error 75 was found during schedule 0x55a1e39c0200 at row-offset 0"
    b" - aborting the schedule\n\n"
)
EPOLL = (
    b"[warn] Epoll ADD(4) on fd 20 failed. Old events were 0; read change was 0 (none);"
    b" write change was 1 (add); close change was 0 (none): Bad file descriptor\n"
)
ABORT = (
    RULE
    + b"MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n"
    + b"  Proc: [[55154,1],3]\n  Errorcode: 3\n\n"
    + b"NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.\n"
    + RULE
)
ONEDNN = b"I0000 00:00:1795281863.228147   10020 port.cc:153] oneDNN custom operations are on.\n"
PMIX = RULE + b"The PMIx server's listener thread failed to start. We cannot\n\ncontinue.\n" + RULE
USERS = b"epoch 1\n\nNBC_Progress was mentioned here\n" + b"-" * 80 + b"\nloss 0.5\n"


class Terminal:
    """Where the output goes: a pipe, so that it can be slow or gone."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe()

    def rest(self) -> bytes:
        """Return everything up to the end, after all writers are gone."""
        os.close(self.write_fd)
        with open(self.read_fd, "rb") as stream:
            return stream.read()


class Sinks(Streams):
    """A sink for any descriptor, in place of those of our own stdout and stderr."""

    def __init__(self) -> None:
        self._sinks, self._left = {}, []

    def __getitem__(self, fd: int) -> LineSink:
        if fd not in self._sinks:
            self._sinks[fd] = LineSink(fd)
        return self._sinks[fd]


class Output(OutputForwarder):
    """A forwarder to any descriptors, which are written to when it is closed."""

    def __init__(self, *, verbose: bool = False) -> None:
        self.sinks = Sinks()
        super().__init__(self.sinks.put, verbose=verbose)

    def close(self, timeout_s: float) -> None:
        super().close(timeout_s)
        self.sinks.close(BOUND_S)


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@dataclass
class Piped:
    """A pipe that is forwarded, and its end to write to."""

    output: Output
    write_end: int
    forwarded: Forwarded

    @staticmethod
    def to(sink_fd: int, prefix: str = "", *, verbose: bool = False) -> Piped:
        output = Output(verbose=verbose)
        read_end, write_end = os.pipe()
        return Piped(output, write_end, output.forward(read_end, prefix, sink_fd))

    def write(self, data: bytes) -> None:
        os.write(self.write_end, data)

    def end(self) -> None:
        os.close(self.write_end)
        self.output.close(BOUND_S)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"one\n\ntwo\nno end", b"> one\n> \n> two\n> no end\n"),
        (b"short\n" + LONG + b"short\n", b"> short\n> " + LONG + b"> short\n"),
        (b"-" * 74, b"> " + b"-" * 74 + b"\n"),
        (NOISE + b"loss 1\n", b"> loss 1\n"),
    ],
    ids=["lines", "long", "a rule at the very end", "noise"],
)
def test_lines_are_prefixed_and_noise_is_shown_when_asked_for(
    terminal: Terminal, written: bytes, shown: bytes, *, verbose: bool
) -> None:
    piped = Piped.to(terminal.write_fd, "> ", verbose=verbose)

    piped.write(written)
    piped.end()

    has_noise = verbose and NOISE in written
    assert terminal.rest() == (b"> " + NOISE) * has_noise + shown


def test_endless_line_is_cut_rather_than_kept(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.host.output._LONGEST_LINE_BYTES", 1000)
    piped = Piped.to(terminal.write_fd)

    piped.write(b"x" * 1500)
    piped.end()

    assert terminal.rest() == b"x" * 1500 + b"\n"


def test_thread_may_see_the_end_before_it_is_woken_for_it(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = set(threading.enumerate())
    output = Output()
    (forwarding,) = set(threading.enumerate()) - others
    read_end, write_end = os.pipe()
    forwarded = output.forward(read_end, "", terminal.write_fd)
    os.write(write_end, b"loss 1\n")
    assert forwarded.last_lines() == ("loss 1",)
    write, ours = os.write, threading.get_ident()

    def write_late(fd: int, data: bytes) -> int:
        if threading.get_ident() == ours:
            os.close(write_end)
            forwarding.join(BOUND_S)
            assert not forwarding.is_alive()
        return write(fd, data)

    monkeypatch.setattr("os.write", write_late)
    output.close(BOUND_S)
    monkeypatch.undo()

    assert terminal.rest() == b"loss 1\n"


def test_descriptors_of_an_ended_output_are_closed(terminal: Terminal) -> None:
    others = open_files()
    output = Output()
    read_end, write_end = os.pipe()
    output.forward(read_end, "", terminal.write_fd)
    opened = open_files() - others
    assert opened

    os.close(write_end)
    output.close(BOUND_S)

    assert not opened & open_files()
    terminal.rest()


def test_worker_can_go_on_when_nobody_reads_its_output(terminal: Terminal) -> None:
    piped = Piped.to(terminal.write_fd)
    os.close(terminal.read_fd)

    for _ in range(100):
        piped.write(b"z" * 8191 + b"\n")

    piped.end()
    assert piped.output.sinks.dropped == 100
    os.close(terminal.write_fd)


def test_pipe_that_never_ends_does_not_hold_up_the_end(terminal: Terminal) -> None:
    """A helper that a worker has started may keep its pipe open."""
    piped = Piped.to(terminal.write_fd)
    piped.write(b"complete\nno end")
    assert os.read(terminal.read_fd, 100) == b"complete\n"

    piped.output.close(0.0)

    assert terminal.rest() == b"no end\n"
    os.close(piped.write_end)


def test_last_lines_are_those_that_the_pipe_holds_by_now(terminal: Terminal) -> None:
    """A worker that has died has written all that it will; nobody waits for the thread."""
    piped = Piped.to(terminal.write_fd, "[w3] ")

    for number in range(50):
        piped.write(b"line %d\n" % number)
        assert piped.forwarded.last_lines()[-1] == f"line {number}"
    piped.end()

    assert piped.forwarded.last_lines()[-1] == "line 49"
    assert terminal.rest() == b"".join(b"[w3] line %d\n" % number for number in range(50))


def test_only_the_speaker_is_heard_until_another_worker_speaks(terminal: Terminal) -> None:
    output = Output()
    output.speaker = 4
    writers = {}
    for worker in (4, 7):
        read_end, writers[worker] = os.pipe()
        forwarded = output.forward(read_end, f"[w{worker}] ", terminal.write_fd, worker)
        os.write(writers[worker], b"early\n")
        forwarded.last_lines()  # all that was written is read by now

    output.speaker = 7
    for worker, write_end in writers.items():
        os.write(write_end, b"late line of %d\n" % worker)
        os.close(write_end)
    output.close(BOUND_S)

    assert terminal.rest() == b"early\nlate line of 7\n"


def test_rule_of_the_user_is_kept_back_for_one_line_only() -> None:
    noise = NoiseFilter()

    assert noise.without_noise(RULE) == b""
    assert noise.without_noise(b"results\n") == RULE + b"results\n"
    assert noise.without_noise(RULE) == b""
    assert noise.without_noise(RULE) == RULE
    assert noise.rest() == RULE
    assert noise.rest() == b""


@pytest.mark.parametrize(
    "noise",
    [
        NBC,
        EPOLL,
        EPOLL + b" \n",
        EPOLL.replace(b"ADD(4)", b"MOD(1)"),
        EPOLL.replace(b"ADD(4)", b"DEL(4)"),
        ABORT,
        ONEDNN,
        b"I0000 00:00:1795281863.228147   10020 cpu_feature_guard.cc:227] This binary is\n",
        b"Error in NBC_Start_round() (-1)\n",
        b"[vm:21055] pmix_ptl_base: send_msg: write failed: Broken pipe (32) [sd = 21]\n",
        b"WARNING: All log messages before absl::InitializeLog() is called are written\n",
        b"To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild\n",
    ],
    ids=lambda noise: noise[:40].decode().strip(),
)
def test_noise_is_hidden_and_the_users_lines_stay(noise: bytes) -> None:
    """Text without any mark of noise is not searched, so each sort of noise must have a mark."""
    alone = NoiseFilter()

    assert alone.without_noise(noise) + alone.rest() == b""
    assert NoiseFilter().without_noise(USERS + noise + noise + USERS) == USERS + USERS


@pytest.mark.parametrize(
    "line",
    [
        b"NBC_Progress: an error was found during schedule\n",
        b"Error in NBC_Start_round() (-1) of mine\n",
        b"[warn] Epoll is slow on fd 20\n",
        b"[vm:21055] pmix_ptl_base: send_msg: done\n",
        b"[vm] pmix_ptl_base: send_msg: write failed\n",
        b"I0000 00:00:1795281863.228147   10020 mine.cc:153] a line\n",
        b"To enable the following instructions: avx, in other operations, rebuild\n",
        b" " + ONEDNN,
        RULE[1:] + b"MPI_ABORT was invoked on rank 3\n",
        b"-" + RULE + b"MPI_ABORT was invoked on rank 3\n",
        RULE + b"MPI_ABORT was mentioned\n",
    ],
    ids=lambda line: line[-60:].decode().strip(),
)
def test_line_that_only_resembles_noise_is_shown(line: bytes) -> None:
    shown = NoiseFilter()

    assert shown.without_noise(line) + shown.rest() == line


@given(
    st.lists(st.sampled_from([NBC, EPOLL, ABORT, PMIX, ONEDNN, RULE, USERS, b"\n"])),
    st.lists(st.integers(1, 5)),
)
def test_pieces_in_which_lines_come_change_nothing(texts: list[bytes], sizes: list[int]) -> None:
    whole, piecewise = NoiseFilter(), NoiseFilter()
    lines = b"".join(texts).splitlines(keepends=True)
    expected = whole.without_noise(b"".join(lines)) + whole.rest()

    shown = b""
    for size in sizes:
        shown += piecewise.without_noise(b"".join(lines[:size]))
        del lines[:size]
    shown += piecewise.without_noise(b"".join(lines)) + piecewise.rest()

    assert shown == expected


def test_banner_of_a_library_is_one_line() -> None:
    sentence = "The PMIx server's listener thread failed to start. We cannot continue."
    shown = NoiseFilter()

    assert shown.without_noise(USERS + PMIX + b"\n" + USERS) == (
        USERS + f"{sentence}\n".encode() + USERS
    )
    assert " ".join(without_rules(PMIX.decode()).split()) == sentence


def test_banner_of_a_library_without_end_is_shown_as_it_came() -> None:
    begun = PMIX.removesuffix(RULE)
    shown = NoiseFilter()

    assert shown.without_noise(begun) == b""
    assert shown.rest() == begun
    assert shown.without_noise(begun + b"x\n" * 40) == begun + b"x\n" * 40


def test_end_of_a_progress_bar_is_kept() -> None:
    last = LastLines()

    last.take(b"\r".join(b"%d of 1000" % n for n in range(1000)) + b"\n")

    (line,) = last.lines
    assert line.endswith("999 of 1000")
    assert len(line) == 300


@given(st.lists(st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), max_size=60)))
def test_lines_are_the_last_of_all_that_are_not_empty(chunks: list[list[bytes]]) -> None:
    last, everything = LastLines(), []
    for chunk in chunks:
        last.take(b"".join(line + b"\n" for line in chunk))
        everything += [line.rstrip().decode(errors="replace") for line in chunk if line.strip()]

    newest = everything[-MOST_LINES:]
    assert last.lines[len(last.lines) - len(newest) :] == tuple(newest) or not newest


def test_flood_loses_its_own_lines_and_says_where() -> None:
    lines = LogLines(room_bytes=10)
    lines.put(0, b"1\n2\n3\n4\n5\n6\n7\n")
    lines.put(0, b"8\n")
    lines.put(1, b"mine\n")

    assert lines.take() == [LogText(0, "", "1\n2\n3\n4\n5\n", 3), LogText(1, "", "mine\n", 0)]
    lines.put(0, b"9\n")
    assert lines.take() == [LogText(0, "", "9\n", 0)]


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

    found = "".join(piece.lines for piece in lines.take()).splitlines()
    assert list(map(len, found)) == [16_384, 16_384, 40_000 - 2 * 16_384, 16_384]


def test_lines_of_one_worker_may_be_taken_alone_and_wait_while_the_way_is_full() -> None:
    lines = LogLines()
    lines.put(0, b"a\n")
    lines.put(1, b"b\n")
    lines.put(0, b"c\nd\n")
    lines.put(0, b"")
    lines.is_held = lambda: True
    assert lines.take() == []

    lines.is_held = lambda: False
    assert lines.take(1) == [LogText(1, "", "b\n", 0)]
    assert lines.take(1) == []
    assert lines.take() == [LogText(0, "", "a\nc\nd\n", 0)]
    assert lines.take() == []
