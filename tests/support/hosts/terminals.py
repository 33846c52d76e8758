"""Terminals with a program in them, and what a person would see there.

``TmuxTerminal`` is a real one.  ``PtyTerminal`` needs no tmux: it knows the few codes that
holdfast may send, and complains of any other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

BOUND_S = 90.0
_LOOK_S = 0.05
_ENDED = "the program has ended with "


def wait_until(
    terminal: TmuxTerminal | PtyTerminal, seen: Callable[[list[str]], bool]
) -> list[str]:
    """Return the lines as soon as ``seen`` is true of them.

    Raises:
        TimeoutError: it was not within 90 s; the message holds the lines.
    """
    deadline = time.monotonic() + BOUND_S
    while not seen(lines := terminal.lines()):
        if time.monotonic() > deadline:
            raise TimeoutError("not seen; the terminal shows:\n" + "\n".join(lines))
        time.sleep(_LOOK_S)
    return lines


def exit_code_in(lines: Sequence[str]) -> int | None:
    """Return the exit code of the program, None while it runs."""
    last = lines[-1] if lines else ""
    return int(last.removeprefix(_ENDED)) if last.startswith(_ENDED) else None


def _shell(command: Sequence[str]) -> list[str]:
    return ["sh", "-c", f"{shlex.join(command)}; echo '{_ENDED}'$?; exec sleep 600"]


class TmuxTerminal:
    """A session of a tmux server of its own."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, columns: int
    ) -> None:
        self._socket = folder / "tmux"
        environment = {**environment, "TERM": "xterm-256color"}
        size = ("-x", str(columns), "-y", "30")
        session = ("new-session", "-d", *size, shlex.join(_shell(command)))
        line = ["tmux", "-S", str(self._socket), "-f", os.devnull, *session]
        subprocess.run(line, env=environment, check=True)

    def lines(self) -> list[str]:
        """Return all lines so far, also those above the screen; no empty ones at the end."""
        shown = self._tmux("capture-pane", "-p", "-J", "-S", "-")
        return shown.rstrip("\n ").splitlines()

    def codes(self) -> list[str]:
        """Return the lines of the screen with their colours."""
        return self._tmux("capture-pane", "-p", "-e").rstrip("\n ").splitlines()

    def resize(self, columns: int) -> None:
        """Make the window as wide as this."""
        self._tmux("resize-window", "-x", str(columns), "-y", "30")

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")

    def _tmux(self, *words: str) -> str:
        line = ["tmux", "-S", str(self._socket), *words]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout


class PtyTerminal:
    """A pseudo terminal, with a screen that grows."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], _: Path, columns: int
    ) -> None:
        shell = _shell(command)
        self._pid, self._fd = pty.fork()
        if self._pid == 0:  # it leads a session, and this is the terminal that controls it
            os.execvpe(shell[0], shell, {**environment, "TERM": "xterm-256color"})
        size = struct.pack("HHHH", 30, columns, 0, 0)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)
        self._columns = columns
        self._seen = b""

    def lines(self) -> list[str]:
        while select.select([self._fd], [], [], 0)[0]:
            try:
                data = os.read(self._fd, 1 << 16)
            except OSError:  # its last process has gone
                break
            self._seen += data
        return drawn(self._seen.decode(errors="replace"), self._columns)

    def hold(self) -> None:
        """Press Ctrl-S: from now on, whoever writes to the terminal waits."""
        os.write(self._fd, b"\x13")

    def release(self) -> None:
        """Press Ctrl-Q."""
        os.write(self._fd, b"\x11")

    def close(self) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._fd)


_CODES = re.compile(r"\r|\n|\x1b\[2K|\x1b\[[0-9;]*m|\x1b.{0,4}|[^\r\n\x1b]+")


def drawn(text: str, columns: int) -> list[str]:
    """Return the lines that ``text`` leaves on a screen; refuse codes that move the cursor.

    Raises:
        ValueError: a code is none of those that holdfast may send, or a live line wraps.
    """
    lines, column = [""], 0
    for piece in _CODES.findall(text):
        if piece == "\n":
            lines.append("")
        elif piece == "\r":
            column = 0
        elif piece == "\x1b[2K":
            lines[-1] = ""
        elif piece.startswith("\x1b"):
            if not piece.endswith("m"):
                raise ValueError(f"the terminal got {piece!r}")
        else:
            lines[-1] = lines[-1][:column].ljust(column) + piece + lines[-1][column + len(piece) :]
            column += len(piece)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


TERMINALS: dict[str, type[TmuxTerminal] | type[PtyTerminal]] = {"pty": PtyTerminal}
if shutil.which("tmux"):
    TERMINALS["tmux"] = TmuxTerminal
"""The terminals that this machine has."""
