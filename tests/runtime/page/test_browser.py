"""A browser without a network draws every plot of a page, and complains of nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from told_run import told_lines, told_run

from holdfast.runtime.page.run_page import page_of

pytest.importorskip("plotly")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WAITS_S = 120
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's package chromium is not installed"),
]


def drawn(path: Path, profile: Path) -> tuple[str, list[str]]:
    """Return the document when its scripts have run, and what the console says."""
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--enable-logging=stderr", f"--user-data-dir={profile}"),
            "--host-resolver-rules=MAP * ~NOTFOUND",
            *("--proxy-server=127.0.0.1:9", "--virtual-time-budget=10000"),
            f"file://{path}",
        ],
        capture_output=True,
        text=True,
        timeout=WAITS_S,
        check=True,
    )
    return done.stdout, re.findall(r"CONSOLE.*", done.stderr)


def test_every_plot_is_drawn_from_the_disk_alone(tmp_path: Path) -> None:
    lines = told_lines(script="a<script>throw 1</script>.py")
    page = page_of(told_run(lines), "2026-01-02 03:04")
    path = tmp_path / "report.html"
    path.write_text(page)

    document, console = drawn(path, tmp_path / "profile")

    places = document.count('role="img"')
    assert console == []
    assert places == 5
    assert len(re.findall(r'class="[^"]*svg-container', document)) == places
    assert "a&lt;script&gt;throw 1&lt;/script&gt;.py" in document
    for text in ("samples/s", "wall time of the run (s)", "relaunch from step 5"):
        assert re.search(rf"<text[^>]*>{re.escape(text)}", document), text


def test_console_of_a_page_with_a_fault_is_heard(tmp_path: Path) -> None:
    """Else the silence of the other test would mean nothing."""
    path = tmp_path / "report.html"
    path.write_text("<script>nothing.at.all</script>")

    _, console = drawn(path, tmp_path / "profile")

    assert len(console) == 1
