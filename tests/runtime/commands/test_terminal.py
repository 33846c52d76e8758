"""A bar for who waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from holdfast.runtime.commands.terminal import ByteProgress


@pytest.mark.parametrize(
    ("seconds", "is_terminal", "is_shown"), [(5, True, True), (0.5, True, False), (5, False, False)]
)
def test_bar_is_shown_to_people_who_wait(
    seconds: float, *, is_terminal: bool, is_shown: bool, tmp_path: Path
) -> None:
    with (tmp_path / "terminal").open("w+") as file:
        console = Console(file=file, force_terminal=is_terminal)
        times = iter([0.0, seconds])
        with ByteProgress("reading", 10, console=console, clock=lambda: next(times)) as progress:
            progress(10)
        file.seek(0)

        assert ("reading" in file.read()) is is_shown
