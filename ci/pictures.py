"""Make the pictures of README and docs/: the lines of a run on a terminal, and its page.

Usage: ``python ci/pictures.py``.  README's script trains on a terminal of 80 columns, and a worker
is killed.  What stands there in the middle of a later epoch becomes docs/live-line.svg.  Chromium
takes docs/page.png of `holdfast report --html`, and Pillow makes it small.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, LINES = 80, 24
COMMAND = ("holdfast", "run", "-n", "4", "--inject", "kill worker=2 step=50", "train.py")
SHOWN_AFTER, SHOWN_S = b"Epoch 4/", 0.7
"""The picture is of a moment so long after the end of this epoch."""
ERASE = "\r\x1b[2K"
WIDE, HIGH = 1000, 1060


def main() -> None:
    """Make both pictures."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(# train\.py.*?)```", text, re.DOTALL)
    with tempfile.TemporaryDirectory(prefix="holdfast-pictures-") as name:
        place = Path(name)
        (place / "train.py").write_text(script, encoding="utf-8")
        shown = train(place).replace(name, "/home/me")
        (ROOT / "docs" / "live-line.svg").write_text(drawn(shown), encoding="utf-8")
        take_page(place, ROOT / "docs" / "page.png")


def train(place: Path) -> str:
    """Train to the end on a terminal; return all that was written to it by some moment."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place)
        os.execvp(COMMAND[0], COMMAND)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    written, ended, shown = b"", 0.0, b""
    while True:
        try:
            written += os.read(terminal, 1 << 16)
        except OSError:  # all of its processes have closed it
            break
        ended = ended or (time.monotonic() if SHOWN_AFTER in written else 0.0)
        if ended and not shown and time.monotonic() - ended > SHOWN_S:
            shown = written
    os.waitpid(pid, 0)
    return shown.decode()


def drawn(written: str) -> str:
    """Return a picture of what a terminal shows that was written to."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    console.print(Text(f"$ {subprocess.list2cmdline(COMMAND)}", style="bold"))
    for line in written.replace("\r\n", "\n").split("\n"):
        console.print(Text.from_ansi(line.rpartition(ERASE)[2]))
    picture = console.export_svg(title="holdfast", unique_id="live")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # nothing is loaded


def take_page(place: Path, target: Path) -> None:
    """Take a picture of the top of a run's page."""
    page, raw = place / "report.html", place / "page.png"
    subprocess.run(
        ["holdfast", "report", str(place / "holdfast-train"), "--html", str(page)], check=True
    )
    text = page.read_text(encoding="utf-8").replace(str(place), "/home/me")
    page.write_text(text, encoding="utf-8")
    subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", f"--screenshot={raw}",
         f"--window-size={WIDE},{HIGH}", page.as_uri()], check=True, capture_output=True,
    )  # fmt: skip
    Image.open(raw).convert("RGB").save(target, optimize=True)


if __name__ == "__main__":
    main()
