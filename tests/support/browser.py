"""A browser without a network, which draws a page from the disk."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="Debian's package chromium is not installed"
)
_WAITS_S = 120


@dataclass(frozen=True)
class Drawn:
    """A document after its scripts have run, and what the console says."""

    document: str
    console: list[str]

    @property
    def places(self) -> int:
        """The number of places for a plot."""
        return self.document.count('role="img"')

    @property
    def plots(self) -> int:
        """The number of plots that plotly has drawn."""
        return len(re.findall(r'class="[^"]*svg-container', self.document))

    def draws(self, text: str) -> bool:
        """Return whether a plot has such a text."""
        return re.search(rf"<text[^>]*>{re.escape(text)}", self.document) is not None


def draw(page: Path, profile: Path) -> Drawn:
    """Open a page; ``profile`` is an empty place for what the browser writes."""
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--enable-logging=stderr", f"--user-data-dir={profile}"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9"),
            "--virtual-time-budget=10000",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=_WAITS_S,
        check=True,
    )
    return Drawn(done.stdout, re.findall(r"CONSOLE.*", done.stderr))
