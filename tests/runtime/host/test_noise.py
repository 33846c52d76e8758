from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.host.output import NoiseFilter, without_rules

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


@pytest.mark.parametrize(
    "noise",
    [
        NBC,
        EPOLL,
        EPOLL + b" \n",
        ABORT,
        ONEDNN,
        b"Error in NBC_Start_round() (-1)\n",
        b"[vm:21055] pmix_ptl_base: send_msg: write failed: Broken pipe (32) [sd = 21]\n",
    ],
)
def test_noise_is_hidden_and_the_users_lines_stay(noise: bytes) -> None:
    shown = NoiseFilter().without_noise(USERS + noise + noise + USERS)

    assert shown == USERS + USERS


def test_noise_may_come_line_by_line() -> None:
    noise = NoiseFilter()
    lines = (USERS + ABORT + NBC + USERS).splitlines(keepends=True)

    shown = b"".join(noise.without_noise(line) for line in lines)

    assert shown + noise.rest() == USERS + USERS


def test_rule_of_the_user_is_kept_back_for_one_line_only() -> None:
    noise = NoiseFilter()

    assert noise.without_noise(RULE) == b""
    assert noise.without_noise(b"results\n") == RULE + b"results\n"
    assert noise.without_noise(RULE) == b""
    assert noise.without_noise(RULE) == RULE
    assert noise.rest() == RULE
    assert noise.rest() == b""


def test_banner_without_end_does_not_hide_the_rest_of_a_job() -> None:
    noise = NoiseFilter()
    noise.without_noise(ABORT.removesuffix(RULE) + b"x\n" * 40)

    assert noise.without_noise(USERS) == USERS


def test_blank_lines_without_noise_before_them_are_shown() -> None:
    assert NoiseFilter().without_noise(b"\n\n" + RULE + b"\n") == b"\n\n" + RULE + b"\n"


@pytest.mark.parametrize(
    "noise",
    [
        NBC,
        EPOLL,
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
def test_noise_is_hidden_although_nothing_else_is_printed(noise: bytes) -> None:
    """Text without any mark of noise is not searched, so each sort of noise must have a mark."""
    shown = NoiseFilter()

    assert shown.without_noise(noise) + shown.rest() == b""


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
