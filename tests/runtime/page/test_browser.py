"""A browser without a network draws every plot of a page, and complains of nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import draw, needs_browser
from told_run import told_lines, told_run

from holdfast.runtime.page.run_page import compared_page_of
from holdfast.runtime.tools.comparison import compare

pytest.importorskip("plotly")
pytestmark = [pytest.mark.process, needs_browser]


def test_every_plot_is_drawn_from_the_disk_alone(tmp_path: Path) -> None:
    one, other = told_run(), told_run(told_lines(script="a<script>throw 1<img src=x>.py"))
    path = tmp_path / "compared.html"
    path.write_text(compared_page_of(one, other, compare(one, other), "2026-01-02 03:04"))

    drawn = draw(path, tmp_path / "profile")

    assert drawn.console == []
    assert (drawn.plots, drawn.places) == (3, 3)
    assert "a&lt;script&gt;throw 1&lt;img src=x&gt;.py" in drawn.document
    assert "<img" not in drawn.document
    assert drawn.draws("B, validation")
    assert drawn.draws("wall time of the run (s)")


def test_fault_of_a_page_is_heard(tmp_path: Path) -> None:
    """Else the silence of the other test would mean nothing."""
    path = tmp_path / "report.html"
    path.write_text('<div role="img"></div><script>Plotly.newPlot()</script>')

    drawn = draw(path, tmp_path / "profile")

    assert len(drawn.console) == 1
    assert (drawn.plots, drawn.places) == (0, 1)
